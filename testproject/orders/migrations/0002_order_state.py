from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("orders", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="order",
            name="state",
            field=models.CharField(
                choices=[
                    ("open", "Not paid yet"),
                    ("paid", "Paid"),
                    ("cancelled", "Cancelled: not paid in time"),
                ],
                default="open",
                max_length=16,
            ),
        ),
    ]
