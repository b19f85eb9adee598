// Package limits decides how much a caller may use. It has the gates and rates that share the worker among roles, their
// default values, and the texts of the refusals.
//
// A Gate shares a bounded resource, such as bytes of memory or worker slots. A role gets at most its share, and a part
// is reserved for superusers. A Limiter bounds the requests of a role per second, and Lines bounds the lines about a
// role in the log. The package does not depend on requests or processes.
package limits
