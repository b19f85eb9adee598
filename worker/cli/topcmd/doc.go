// Package topcmd is the command top: the incident screen of one server, and the list of servers.
package topcmd
