"""An app that uses the server of the site before the test environment is set up."""
