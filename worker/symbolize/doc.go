// Package symbolize leads from the mappings of a process to names and source lines: it opens the ELF image of a
// mapping, finds the image's separate debug files, and names addresses of it. Captures, core files, and the commands
// symbols and doctor use it. It walks no stacks and stops no process.
package symbolize
