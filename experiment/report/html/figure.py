"""A chart with its title and legend."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.texts import Words


def figure(
    b: Bilingual,
    title: Words,
    picture: Markup,
    legend: Iterable[tuple[Markup, Words]] = (),
    notes: Iterable[Words] = (),
) -> Markup:
    """The chart below its title, samples with their labels, and notes in small letters."""
    item, caption = Markup("<li>{}<bdi>{}</bdi></li>"), Markup("<figcaption>{}</figcaption>")
    items = Markup("").join(item.format(sample, b.words(label)) for sample, label in legend)
    below = Markup('<ul class="legend">{}</ul>').format(items) if items else items
    said = Markup(" ").join(map(b.words, notes))
    return Markup('<figure><p class="over">{}</p>{}{}{}</figure>').format(
        b.words(title), picture, below, caption.format(said) if said else said
    )
