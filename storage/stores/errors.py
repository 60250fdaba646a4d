"""Why a store cannot be opened or shared. Once it is open, a store answers with outcomes and raises nothing."""


class StoreError(Exception):
    """The store cannot be used. The message names the setting and the remedy."""

    setting = "store.url"


class StoreUrlError(StoreError, ValueError):
    """`store.url` is malformed, or names a kind of store that nobody registered."""


class StoreUnusable(StoreError):
    """What `store.url` points to cannot be read and written."""


class StoreFull(StoreUnusable):
    """There is not room for a single page where `store.url` points to."""


class StoreTooSmall(StoreError, ValueError):
    """`store.capacity` is less than one page."""

    setting = "store.capacity"


class StoreNotShared(StoreError):
    """What one rank wrote to `store.url` another does not find there: they are not one store."""
