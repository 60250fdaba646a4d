"""What block headers say of pages of the tree: made for every copy to host and every write to the store."""

from collections.abc import Sequence

from stratakv.storage.moves import PageStamp
from stratakv.storage.tree import Tree


def stamps(tree: Tree, pages: Sequence[int]) -> tuple[PageStamp, ...]:
    """The stamps of `pages`. Cheap when a page follows its parent in the list, as it mostly does."""
    columns = tree.columns
    namespaces: dict[int, bytes] = {}
    made = []
    for page in pages:
        parent = columns.parent[page]
        known = namespaces.get(parent)
        namespace = namespaces[page] = tree.namespace(page) if known is None else known
        made.append(PageStamp(columns.key[page], columns.key[parent], columns.depth[page], namespace))
    return tuple(made)
