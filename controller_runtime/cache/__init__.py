"""Informers as in client-go's tools/cache: reflector, store handlers and the informer that joins them."""
