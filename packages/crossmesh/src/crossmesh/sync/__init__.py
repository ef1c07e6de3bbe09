"""Weight sync between jobs: publishers and subscribers of versions, and the maps between them."""
