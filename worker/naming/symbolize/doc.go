// Package symbolize maps addresses of a process to names and source lines. It opens the ELF image of a mapping, finds
// the image's separate debug files, and looks up addresses. Captures, core files, and the commands symbols and doctor
// use it. It does not walk stacks or stop processes.
package symbolize
