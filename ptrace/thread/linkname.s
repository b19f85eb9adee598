// Without a file of assembly a package may not declare functions that have no body; see nosched.go.
