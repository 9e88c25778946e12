"""What is built of the layers below and used by none of them, under public names such as warptape.sparse."""
