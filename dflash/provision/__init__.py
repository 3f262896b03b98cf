"""What a host must have before work starts: `facts` reads it, `checks` judges it, `operations` change it.

Nothing is imported here: facts and checks need the standard library alone, and run where no tools of the desk are.
"""
