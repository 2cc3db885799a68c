"""XML as plain elements, for texts that nobody vouches for.

Python's expat does the parsing; what makes XML dangerous is refused before it can do anything: document types, and
with them all entities, external and nested ones. Size, depth and number of elements are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from xml.parsers import expat

MOST_BYTES = 256 << 20
MOST_ELEMENTS = 4 << 20
MOST_ATTRIBUTES = 64
DEEPEST = 4  # algo, gpu, tb, step

_WHOLE = re.compile(r"-?[0-9]{1,15}")


class XmlError(ValueError):
    """What is wrong with an algorithm file: line and path of the element come first."""


@dataclass
class Element:
    """One element; ``path`` reads like ``/algo/gpu[1]/tb[0]/step[3]``, places among its siblings, from 0."""

    tag: str
    attributes: dict[str, str]
    line: int
    path: str
    children: list[Element] = field(default_factory=list)

    def fail(self, what: str, attribute: str = "") -> XmlError:
        """The error that names this element, or one of its attributes."""
        at = f"{self.path}/@{attribute}" if attribute else self.path
        return XmlError(f"line {self.line}: {at}: {what}")

    def allow_only(self, attributes: set[str], children: set[str]) -> None:
        """Refuses what a reader of this element would pass over in silence."""
        for name in self.attributes:
            if name not in attributes:
                raise self.fail("nothing is known of this attribute", name)
        for child in self.children:
            if child.tag not in children:
                raise child.fail(f"<{child.tag}> does not belong here")

    def text(self, name: str, default: str | None = None) -> str:
        """An attribute; it must be there if there is no default."""
        value = self.attributes.get(name, default)
        if value is None:
            raise self.fail("is missing", name)
        return value

    def integer(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """An attribute as a whole number from ``least`` to ``most``."""
        value = self.text(name, None if default is None else str(default))
        if not _WHOLE.fullmatch(value):
            raise self.fail(f'"{value[:40]}" is no whole number', name)
        if not least <= int(value) <= most:
            raise self.fail(f"{value} is not from {least} to {most}", name)
        return int(value)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """An attribute that must be one of ``choices``."""
        value = self.text(name)
        if value not in choices:
            raise self.fail(f'"{value[:40]}" is none of {", ".join(choices)}', name)
        return value


class _Builder:
    def __init__(self) -> None:
        self.parser = expat.ParserCreate()
        self.root: Element | None = None
        self.open: list[Element] = []
        self.elements = 0
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters
        self.parser.StartDoctypeDeclHandler = self.refuse("a document type")
        self.parser.EntityDeclHandler = self.refuse("an entity")
        self.parser.ExternalEntityRefHandler = self.refuse("an external entity")
        self.parser.ProcessingInstructionHandler = self.refuse("a processing instruction")

    def refuse(self, what: str) -> Callable[..., int]:
        def handler(*_: object) -> int:
            raise XmlError(f"line {self.parser.CurrentLineNumber}: {what} has no place in an algorithm file")

        return handler

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        self.elements += 1
        if self.elements > MOST_ELEMENTS:
            raise XmlError(f"line {line}: more than {MOST_ELEMENTS} elements")
        if len(self.open) == DEEPEST:
            raise self.open[-1].fail(f"<{tag[:40]}> does not belong here")
        if self.open:
            parent = self.open[-1]
            element = Element(tag, attributes, line, f"{parent.path}/{tag}[{len(parent.children)}]")
            parent.children.append(element)
        else:
            element = self.root = Element(tag, attributes, line, f"/{tag}")
        if len(attributes) > MOST_ATTRIBUTES:
            raise element.fail(f"more than {MOST_ATTRIBUTES} attributes")
        self.open.append(element)

    def end(self, _: str) -> None:
        self.open.pop()

    def characters(self, text: str) -> None:
        if text.strip():
            raise self.open[-1].fail(f'text ("{text.strip()[:40]}") has no place in an algorithm file')


def read_document(text: bytes) -> Element:
    """The root element. XmlError says in which line the text stops being an algorithm file."""
    if len(text) > MOST_BYTES:
        raise XmlError(f"longer than {MOST_BYTES} bytes")
    builder = _Builder()
    try:
        builder.parser.Parse(text, True)
    except expat.ExpatError as error:
        raise XmlError(f"line {error.lineno}: this is no XML: {expat.ErrorString(error.code)}") from None
    assert builder.root is not None  # expat refuses a text without an element
    return builder.root
