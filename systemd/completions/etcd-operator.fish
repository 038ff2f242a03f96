# The shell reads this at the first Tab; the program prints the rest, of its own version.
etcd-operator completions fish | source
