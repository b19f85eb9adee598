// Package measurecmd has the commands that measure processes: memory, plan, profile, trace and waits.
package measurecmd
