"""JSON that a browser receives only if it has changed."""

from __future__ import annotations

import hashlib
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.cache import get_conditional_response


def conditional_json(request: HttpRequest, data: dict[str, Any]) -> HttpResponse:
    """`data` as JSON with an ETag, or 304 without a body if the request's If-None-Match has this ETag."""
    response = JsonResponse(data, json_dumps_params={"ensure_ascii": False})
    response["ETag"] = f'"{hashlib.blake2b(response.content, digest_size=12).hexdigest()}"'
    answer = get_conditional_response(request, etag=response["ETag"], response=response)
    return answer if answer is not None else response
