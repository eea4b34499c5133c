"""The API server: objects, patches, selectors, watches, and their paths over HTTP."""
