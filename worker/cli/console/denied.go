package console

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
)

// IsDenied reports whether err means that this user may not read a server or a process.
func IsDenied(err error) bool {
	return errors.Is(err, process.ErrNotPermitted) || errors.Is(err, cluster.ErrNoAccess) || errors.Is(err, cluster.ErrWrongUser) ||
		errors.Is(err, fs.ErrPermission) || errors.Is(err, process.ErrDenied)
}

// Subject is the server or the processes that a command should read.
type Subject struct {
	// DataDir is the data directory; empty: not given.
	DataDir string
	// PIDs are the process ids in the arguments; nil: not given.
	PIDs []int
	// Words are the command and its arguments, without the name of the program.
	Words []string
}

// DeniedProcess returns a sentence about a process that this user may not read: its owner, and the user that may read it.
func DeniedProcess(pid int) string {
	owner := -1
	if status, err := process.ReadStatus(pid); err == nil {
		owner = status.UID[1]
	}
	if os.Geteuid() == 0 || owner == os.Geteuid() {
		return fmt.Sprintf("process %s may not be read: "+
			"this command lacks CAP_SYS_PTRACE, as in a container, or a security module forbids it", named(pid))
	}
	return rights("process "+named(pid), owner) + ", for example with sudo"
}

// Describe returns the text of an error that ends a command. If this user may not read the subject, the text names its owner and
// the command that may read it.
func Describe(err error, s Subject) string {
	switch {
	case errors.Is(err, cluster.ErrWrongUser), errors.Is(err, cluster.ErrNoAccess):
		return describeDenied(err, s)
	case errors.Is(err, cluster.ErrNotDataDir) && s.DataDir != "":
		return describeNoDataDir(err, s.DataDir)
	case errors.Is(err, cluster.ErrNotRunning):
		var single *cluster.SingleUserError
		if errors.As(err, &single) {
			return fmt.Sprintf("%v. Only this process runs: capture %[2]d, plan %[2]d and memory %[2]d show it", err, single.PID)
		}
		text, _, _ := strings.Cut(err.Error(), ": /proc/") // without the kernel's error, which does not help
		return text + ". Start the server, or print what a worker has recorded: pg_stat_backtrace history --record-dir DIRECTORY"
	}
	var path *fs.PathError
	if text := err.Error(); errors.As(err, &path) && errors.Is(err, fs.ErrPermission) && !strings.Contains(text, "\n") && path.Path != "" {
		return fmt.Sprintf("%s\n  %s: %s", text, rights(path.Path, ownerOfFile(path.Path)), s.sudo())
	}
	return err.Error()
}

// describeDenied returns the text of an error that means that this user may not read a server.
func describeDenied(err error, s Subject) string {
	if os.Geteuid() == 0 {
		return err.Error() + "\n  Root lacks a capability here, as in a container: grant CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
	}
	what, owner := "the server", -1
	switch {
	case s.DataDir != "":
		what, owner = s.DataDir, ownerOfFile(s.DataDir)
	case len(s.PIDs) > 0:
		what = fmt.Sprintf("process %s", named(s.PIDs[0]))
		if status, err := process.ReadStatus(s.PIDs[0]); err == nil {
			owner = status.UID[1]
		}
	}
	if owner == os.Geteuid() {
		return err.Error() + "\n  Run the command as root: " + s.sudo()
	}
	text := fmt.Sprintf("%s: %s", rights(what, owner), s.sudo())
	if len(s.Words) > 0 && s.Words[0] == "top" {
		text += "; or show the data of a worker with --connect URL"
	}
	return text
}

// describeNoDataDir returns the text of an error that means that dir is not a data directory. It lists the data directories of the
// servers below dir or, without any, of this host's servers.
func describeNoDataDir(err error, dir string) string {
	text := err.Error()
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrPermission) {
		return text
	}
	const most = 5
	found, _, _ := AllServers()
	title := "Servers of this host"
	if below := serversBelow(found, dir); len(below) > 0 {
		title, found = "Servers below it", below
	}
	for i, other := range found {
		if i == most {
			text += fmt.Sprintf("\n  and %d more", len(found)-most)
			break
		}
		if i == 0 {
			text += "\n  " + title + ":"
		}
		text += "\n  -D " + render.ShellWord(other)
	}
	return text
}

// serversBelow returns those data directories that are below dir.
func serversBelow(found []string, dir string) (below []string) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil
	}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	for _, other := range found {
		if rest, err := filepath.Rel(path, other); err == nil && rest != "." && rest != ".." && !strings.HasPrefix(rest, "../") && path != "/" {
			below = append(below, other)
		}
	}
	return below
}

// rights returns a sentence about a file or process (what): which user owns it, and which user may read it. owner is a user id;
// negative: not known.
func rights(what string, owner int) string {
	if owner < 0 {
		return fmt.Sprintf("user %s may not read %s. Run the command as its owner or as root", nameOf(os.Geteuid()), what)
	}
	return fmt.Sprintf("%s belongs to user %s, and user %s may not read it. Run the command as that user or as root", what,
		nameOf(owner), nameOf(os.Geteuid()))
}

// sudo returns this program's command line with sudo before it, quoted for a shell.
func (s Subject) sudo() string {
	words := []string{"sudo pg_stat_backtrace"}
	for _, word := range s.Words {
		words = append(words, render.ShellWord(word))
	}
	return strings.Join(words, " ")
}

// ownerOfFile returns the user id of a file's owner; -1: it is not known.
func ownerOfFile(path string) int {
	info, err := os.Stat(path)
	if err != nil {
		return -1
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// nameOf returns the name of a user, or the number if the name is not known.
func nameOf(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}
