"""Command lines of documents, parsed by the program and not run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pytest

from experiment.commands import main as cli
from experiment.commands import parser as words
from experiment.text import Translator


class ParsedError(Exception):
    """A command line was parsed, and what would have come of it is left out."""

    def __init__(self, parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
        self.parser, self.options = parser, options


def parsed(given: Sequence[str]) -> ParsedError:
    """The parser for these words and the options that it finds; fails if it refuses them."""

    def stop(parser: argparse.ArgumentParser, given: Sequence[str]) -> None:
        raise ParsedError(parser, words.parse(parser, given))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "parse", stop)
        with pytest.raises(ParsedError) as caught:
            cli._dispatch(list(given), Translator("en"))
    return caught.value
