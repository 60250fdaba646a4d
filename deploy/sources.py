"""Where settings come from: defaults, then a YAML file, then the environment, then flags; the later ones win.

`load` remembers for each value which of them it came from, and turns everything that is wrong into one message
per setting, with the remedy.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource

from stratakv.deploy.settings import ENV_DELIMITER, ENV_PREFIX, StrataSettings

DEFAULT = "default"
SettingPath = tuple[str, ...]


class SettingsError(Exception):
    """Settings that cannot be used; the message has one line per setting."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One source: nested `values` and, per setting, what to call the place they come from."""

    values: dict[str, Any]
    places: Mapping[SettingPath, str]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and the place of every value that is not a default."""

    settings: StrataSettings
    places: Mapping[SettingPath, str]

    def place(self, path: SettingPath) -> str:
        """Where the value of `path` came from."""
        return self.places.get(path, DEFAULT)


def load(config: Path | None, flags: Mapping[str, tuple[SettingPath, Any]]) -> Loaded:
    """The settings of a YAML file (or none), this process's environment and `flags` (name to path and value).

    SettingsError if a source cannot be read or a value is not allowed.
    """
    layers = [_file_layer(config), _env_layer(), _flag_layer(flags)]
    values: dict[str, Any] = {}
    places: dict[SettingPath, str] = {}
    for layer in layers:
        _merge(values, layer.values)
        places.update(layer.places)
    try:
        return Loaded(StrataSettings(**values), places)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(detail, places) for detail in error.errors())) from None


def leaves(settings: StrataSettings) -> Iterator[tuple[SettingPath, Any]]:
    """Every setting with its value, in the order of the tree."""
    yield from _leaves(settings, ())


def _leaves(model: BaseModel, above: SettingPath) -> Iterator[tuple[SettingPath, Any]]:
    for name, value in model:
        path = (*above, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, path)
        else:
            yield path, value


# -- the layers


class _OnceOnlyLoader(yaml.SafeLoader):
    """YAML in which a key that is given twice is an error: of two values one would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of `node`. Raises a YAMLError that names the repeated key and its line."""
        names = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if names.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} is given more than once", key.start_mark
                )
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def _file_layer(config: Path | None) -> Layer:
    if config is None:
        return Layer({}, {})
    try:
        values = yaml.load(config.read_text(), _OnceOnlyLoader)
    except OSError as error:
        raise SettingsError(
            f"--config: {config} cannot be read ({error.strerror}); give a YAML file"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config: {config} is not YAML: {' '.join(str(error).split())}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise SettingsError(
            f"--config: {config} must hold sections such as `cache:`, not {type(values).__name__}"
        )
    return Layer(values, dict.fromkeys(_paths(values), f"file {config}"))


def _env_layer() -> Layer:
    _refuse_unknown_variables()
    values = EnvSettingsSource(StrataSettings)()
    places = {path: f"env {ENV_PREFIX}{ENV_DELIMITER.join(path).upper()}" for path in _paths(values)}
    return Layer(values, places)


def _refuse_unknown_variables() -> None:
    """A nested variable with an unknown section is a typing error. Others with our prefix may be anybody's."""
    for name in os.environ:
        section, delimiter, _ = name.removeprefix(ENV_PREFIX).lower().partition(ENV_DELIMITER)
        if name.startswith(ENV_PREFIX) and delimiter and section not in StrataSettings.model_fields:
            known = ", ".join(StrataSettings.model_fields)
            raise SettingsError(f"{name}: there is no section {section!r}; the sections are {known}")


def _flag_layer(flags: Mapping[str, tuple[SettingPath, Any]]) -> Layer:
    values: dict[str, Any] = {}
    places = {}
    for flag, (path, value) in flags.items():
        if value is None:
            continue
        nested: Any = value
        for name in reversed(path):
            nested = {name: nested}
        _merge(values, nested)
        places[path] = f"flag {flag}"
    return Layer(values, places)


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


def _paths(values: Mapping[str, Any], above: SettingPath = ()) -> Iterator[SettingPath]:
    for name, value in values.items():
        path = (*above, str(name))
        if isinstance(value, dict):
            yield from _paths(value, path)
        else:
            yield path


# -- what is wrong


def _explain(detail: Any, places: Mapping[SettingPath, str]) -> str:
    """One validation error as a sentence: setting, where its value came from, what is wrong, what it is for."""
    path = tuple(str(part) for part in detail["loc"])
    given = sorted({place for known, place in places.items() if known[: len(path)] == path})
    source = f" (from {', '.join(given)})" if given else ""
    if not path:
        return str(detail["msg"].removeprefix("Value error, "))
    if detail["type"] == "extra_forbidden":
        return f"{'.'.join(path)}{source}: there is no such setting; `stratakv config show` lists them all"
    problem = (
        detail["msg"].removeprefix("Value error, ").removeprefix(f"{'.'.join(path)}: ").removeprefix("Input ")
    )
    shown = "" if detail["type"] == "value_error" else f", not {detail['input']!r}"
    return f"{'.'.join(path)}{source}: {problem}{shown}{_purpose(path)}"


def _purpose(path: SettingPath) -> str:
    model: Any = StrataSettings
    for name in path[:-1]:
        field = model.model_fields.get(name)
        if field is None:
            return ""
        model = field.annotation
    field = model.model_fields.get(path[-1])
    return f" [{field.description}]" if field is not None and field.description else ""
