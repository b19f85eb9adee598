package rules

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// Command is a program that runs when an alert begins and when an alert ends.
type Command struct {
	// Run has the absolute path of the program and its arguments; empty: none runs.
	Run []string
	// Timeout bounds the time of one run.
	Timeout time.Duration
}

// Bounds of a Command.
const (
	maxCommandTime = 10 * time.Second
	maxWords       = 64
	maxWord        = 4096
	maxLinks       = 40 // symbolic links on the way to the program, as in the kernel
)

func (c *Config) command(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode && n.Kind != yaml.MappingNode {
		return at(n, "command must be a mapping with run and timeout")
	}
	err := each(n, "command", func(key string, k, v *yaml.Node) error {
		switch key {
		case "run":
			return c.words(v)
		case "timeout":
			return duration(v, key, maxCommandTime, &c.Command.Timeout)
		}
		return at(k, "unknown name %q; known are run and timeout", key)
	})
	if err == nil && len(c.Command.Run) == 0 && n.Tag != "!!null" {
		return at(n, "command needs run")
	}
	return err
}

// words reads the list of the program and its arguments. It refuses a single text, which only a shell could split into words.
func (c *Config) words(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 || len(n.Content) > maxWords {
		return at(n, "run must be a list of the program and its arguments, such as [/usr/local/bin/page, dba], with at most %d words", maxWords)
	}
	for _, w := range n.Content {
		switch {
		case w.Kind != yaml.ScalarNode || w.Anchor != "" || w.Tag == "!!null" || w.Tag == "!!binary":
			return at(w, "run: each argument must be a text")
		case len(w.Value) > maxWord || strings.ContainsRune(w.Value, 0):
			return at(w, "run: an argument must have at most %d bytes, and no zero byte", maxWord)
		}
		c.Command.Run = append(c.Command.Run, w.Value)
	}
	if p := c.Command.Run[0]; !filepath.IsAbs(p) || filepath.Clean(p) != p {
		return at(n.Content[0], "run: the program must be an absolute path without . and .., not %s", valueOf(n.Content[0]))
	}
	return nil
}

// CheckProgram returns an error if a user other than root and this process's user can change a program, or if this process
// cannot execute the program. It follows symbolic links, and checks each link and each directory on the way too.
func CheckProgram(path string) error {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("command: %w", reason(path, err))
	}
	st, err := safe(resolved, false)
	if err != nil {
		return fmt.Errorf("command: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("command: %s is not a regular file", resolved)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, resolved, unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("command: %s cannot be executed: %w", resolved, err)
	}
	if err := safeWay(path, maxLinks); err != nil {
		return fmt.Errorf("command: %w", err)
	}
	return nil
}

// safeWay returns an error if other users can change a directory or a symbolic link on the way to a file, whose path is absolute.
// It follows at most the given number of links.
func safeWay(path string, links int) error {
	at, rest := "/", strings.Split(path, "/")
	for n, name := range rest {
		if name == "" || name == "." {
			continue
		}
		if _, err := safe(at, true); err != nil {
			return err
		}
		if name == ".." {
			at = filepath.Dir(at) // at is no link: those are followed below
			continue
		}
		dir := at
		at = filepath.Join(dir, name)
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			continue
		}
		switch {
		case st.Uid != 0 && int(st.Uid) != os.Geteuid(): // in a directory with the sticky bit, for example
			return fmt.Errorf("the symbolic link %s belongs to user id %d; it must belong to root or to the worker's user", at, st.Uid)
		case links == 0:
			return fmt.Errorf("%s: %w", at, unix.ELOOP)
		}
		to, err := os.Readlink(at)
		if err != nil {
			return reason(at, err)
		}
		if !filepath.IsAbs(to) {
			to = dir + "/" + to
		}
		return safeWay(to+"/"+strings.Join(rest[n+1:], "/"), links-1)
	}
	return nil
}

// reason returns an error that contains the path only once.
func reason(path string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// safe returns an error if other users can change the file or directory. A directory with the sticky bit may be writable for all:
// other users can make files there, but cannot replace files of this user.
func safe(path string, dir bool) (st unix.Stat_t, err error) {
	const others = 0o022
	if err := unix.Stat(path, &st); err != nil {
		return st, fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return st, fmt.Errorf("%s belongs to user id %d; it must belong to root or to the worker's user", path, st.Uid)
	case st.Mode&others != 0 && (!dir || st.Mode&unix.S_ISVTX == 0):
		return st, fmt.Errorf("%s can be written by its group or by everybody (mode %04o); run chmod go-w", path, st.Mode&0o7777)
	}
	return st, nil
}
