// Package historycmd has the commands that read what a worker recorded: history, incident and rules.
package historycmd
