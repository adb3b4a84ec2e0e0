"""What a shop does in the background all day: gives the console of the demo something to show."""
