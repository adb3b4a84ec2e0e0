"""What a server of forks imports before it forks."""

import django

django.setup()
