// Package places holds the tests of servers whose files, names or processes are not where the worker's own are: a
// server whose package was replaced while it runs, one on an overlay, in another root directory, in another mount or
// PID namespace, and workers with fewer capabilities. Real servers, real processes, real mounts; each in a mount
// namespace of its own, so that nothing is left behind. It must not know how the worker finds what it finds: it runs
// the program, and asks through SQL.
package places
