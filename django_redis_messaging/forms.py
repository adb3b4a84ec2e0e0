"""For forms of the site: fields to choose people.

    class ReviewForm(ContactFormMixin, forms.Form):
        reviewers = ContactField(multiple=True)

    form = ReviewForm(request.POST, contact_user=request.user)

See docs/web.md.
"""

from __future__ import annotations

from .web.fields import ContactAdminMixin, ContactField, ContactFormMixin, ContactWidget

__all__ = ["ContactAdminMixin", "ContactField", "ContactFormMixin", "ContactWidget"]
