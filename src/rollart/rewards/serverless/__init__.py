"""Where reward functions run: processes here, a URL, a cloud function; what all of them share."""
