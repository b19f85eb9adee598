package export

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"slices"
	"strings"
	"syscall"
)

// ErrHeaderFile means that a file with headers cannot be used.
var ErrHeaderFile = errors.New("header file cannot be used")

const maxHeaderFile = 64 << 10

// ownHeaders are the headers that the worker sets. A file with headers must not contain them.
var ownHeaders = []string{
	"Content-Type", "Content-Encoding", "Content-Length", "Connect-Protocol-Version", "Host", "Connection",
	"Transfer-Encoding",
}

// ReadHeaders reads a file with headers, such as "Authorization: Bearer …" and "X-Scope-OrgID: …". It ignores empty
// lines and lines that start with #. It returns an error if other users have access to the file. The error wraps
// ErrHeaderFile.
func ReadHeaders(path string) (http.Header, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a named pipe must not block
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHeaderFile, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHeaderFile, err)
	}
	const others = 0o077
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrHeaderFile, path)
	case info.Mode().Perm()&others != 0:
		return nil, fmt.Errorf("%w: %s has permissions %04o; the group and others must have no access (chmod 0600)",
			ErrHeaderFile, path, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxHeaderFile+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHeaderFile, err)
	}
	if len(data) > maxHeaderFile {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrHeaderFile, path, maxHeaderFile)
	}
	headers, err := parseHeaders(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrHeaderFile, path, err)
	}
	return headers, nil
}

// validName reports whether a text is the name of a header (RFC 9110, token).
func validName(name string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune(marks, r)
	})
}

// validValue reports whether a text can be the value of a header.
func validValue(value string) bool {
	const firstVisible, deleteCharacter = 0x20, 0x7f
	return !strings.ContainsFunc(value, func(r rune) bool {
		return r < firstVisible && r != '\t' || r == deleteCharacter
	})
}

// parseHeaders parses the lines of a file with headers. Errors have the number of a line but not its text, which may be
// a secret.
func parseHeaders(data []byte) (http.Header, error) {
	headers := make(http.Header)
	lines := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, found := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !found || !validName(name) || !validValue(value) {
			return nil, fmt.Errorf("line %d is not \"Name: value\"", number)
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if slices.Contains(ownHeaders, name) {
			return nil, fmt.Errorf("line %d sets %s, which the worker sets itself", number, name)
		}
		headers.Add(name, value)
	}
	return headers, lines.Err()
}
