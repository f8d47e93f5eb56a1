"""What mkdocs calls as it builds the site: generated pages, their navigation, Markdown that it can read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import optimization_pages
import reference
from mkdocs.structure.files import File, Files
from readable_markdown import for_the_site

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

WIDE = {"accuracy.md"}  # tables that need all of the page
GENERATED = {"commands.md": reference.commands, "api.md": reference.api}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of the optimizations to the navigation."""
    for section in config.nav or []:
        for pages in section.values():
            if "optimizations.md" in pages:
                pages.extend(optimization_pages.navigation())
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made from docstrings."""
    made = {name: make() for name, make in GENERATED.items()} | optimization_pages.pages()
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page as the site's parser needs it."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    if page.file.src_uri in GENERATED or page.file.src_uri.startswith("optimizations/"):
        return markdown
    text = for_the_site(markdown, page.file.src_uri)
    return optimization_pages.linked(text) if page.file.src_uri == "optimizations.md" else text
