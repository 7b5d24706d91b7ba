"""Links to pages of the console, and its dashboard. A link is plain text to those who may not open it.

``{% page_of "run" key text %}`` is the page of a run, ``{% list_of opts %}`` the list of a model,
``{% dashboard as name %}`` what the reader may see of the engine.
"""

from typing import Any

from django import template
from django.urls import reverse
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from runs.admin.dashboard import page
from runs.admin.formatting import link

register = template.Library()


@register.simple_tag(takes_context=True)
def page_of(context: template.Context, name: str, key: Any, text: Any) -> SafeString:
    """The page of an object of the engine's."""
    return link(context["request"].user, name, key, text)


@register.simple_tag(takes_context=True)
def list_of(context: template.Context, opts: Any) -> SafeString:
    """The name of the model, and the link for a reader who may view or change what is listed."""
    reader, name = context["request"].user, capfirst(str(opts.verbose_name_plural))
    if not any(reader.has_perm(f"{opts.app_label}.{verb}_{opts.model_name}") for verb in ("view", "change")):
        return conditional_escape(name)
    address = reverse(f"admin:{opts.app_label}_{opts.model_name}_changelist")
    return format_html('<a href="{}">{}</a>', address, name)


@register.simple_tag(takes_context=True)
def dashboard(context: template.Context) -> page.Dashboard:
    """The dashboard of the request's user."""
    return page.of(context["request"].user)
