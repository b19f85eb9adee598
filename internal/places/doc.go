// Package places contains the tests of servers whose files, names or processes are at other places than the worker's.
// One server's package is replaced while it runs. Others run on an overlay, in another root directory, or in another
// mount or PID namespace. Some workers have fewer capabilities. Servers, processes and mounts are real. Each test
// runs in a new mount namespace, so that nothing is left behind. The package must not know how the worker works
// inside: it runs the program, and asks through SQL.
package places
