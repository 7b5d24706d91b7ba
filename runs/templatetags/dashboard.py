"""``{% dashboard %}``: what the operator who looks at the page may see of the engine."""

from django import template

from runs.admin.dashboard import page as dashboards

register = template.Library()


@register.simple_tag(takes_context=True)
def dashboard(context: template.Context) -> dashboards.Dashboard:
    """The Dashboard of the request's user."""
    return dashboards.of(context["request"].user)
