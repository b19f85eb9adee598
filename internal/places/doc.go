// Package places contains tests with servers whose files, names or processes are in other places than the worker's. For
// example, the package of a server is replaced while the server runs. Other servers run on an overlay, in another root
// directory, or in another mount or PID namespace. Some workers have fewer capabilities. Servers, processes and mounts are
// real. Each test runs in a new mount namespace, so that no mount remains. The package must not know how the worker works
// inside: it runs the program, and uses it through SQL.
package places
