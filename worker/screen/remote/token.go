package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

const (
	maxTokenFile = 64 << 10
	othersAccess = 0o077
)

// readToken returns the token in a file. It refuses the file unless it belongs to this user or to root and other users have no
// access. The file has one line: a token, or the word operator and a token, as in the worker's token file.
func readToken(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a named pipe must not block
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.Mode().IsRegular():
		return "", fmt.Errorf("the token file %q is not a regular file", path)
	case info.Mode().Perm()&othersAccess != 0:
		return "", fmt.Errorf("the token file %q has permissions %04o; the group and others must have no access (chmod 0600)",
			path, info.Mode().Perm())
	case int(stat.Uid) != os.Geteuid() && stat.Uid != 0:
		return "", fmt.Errorf("the token file %q belongs to user %d; it must belong to you or to root", path, stat.Uid)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	token, err := oneToken(data)
	if err != nil {
		return "", fmt.Errorf("the token file %q %w", path, err)
	}
	return token, nil
}

func oneToken(data []byte) (token string, err error) {
	for line := range bytes.Lines(data) {
		text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(string(line)), "operator "))
		switch {
		case text == "":
		case token != "":
			return "", errors.New("has several tokens; write the one to be used into a file of its own")
		case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
			return "", errors.New("has a token with a character that is not a visible ASCII character")
		default:
			token = text
		}
	}
	if token == "" {
		return "", errors.New("has no token")
	}
	return token, nil
}
