// Package limits has the answer to the question: how much may this caller use? It has the gates and rates that share
// the worker among roles, their default values, and the words of the refusals.
//
// A Gate shares a bounded resource, such as bytes of memory or worker slots. A role gets at most its share, and a part
// is reserved for superusers. A Limiter bounds the requests of a role in a second, and Lines its lines in the log. The
// package does not know requests or processes.
package limits
