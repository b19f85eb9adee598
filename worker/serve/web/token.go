package web

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// Bounds of a token file.
const (
	minToken      = 16 // bytes: a shorter token can be guessed
	maxTokenFile  = 64 << 10
	tokenRecheck  = time.Second
	othersMayRead = 0o077
)

// ErrTokenFile means that a token file cannot be used.
var ErrTokenFile = errors.New("token file cannot be used")

// tokens checks whether requests have a token of a file. The file has one token a line. It is read again after a change, so
// that a new token needs no restart.
//
// While the process has no permission to read the file, the tokens that it read last stay valid. So a worker that read the
// file as root, before it became the server's user, can use a file that only root can read.
type tokens struct {
	path string
	log  zerolog.Logger
	root bool // root has read the tokens, and this process may have no permission to see a change

	mu      sync.Mutex
	checked time.Time // time of the last check for a change
	seen    stamp     // version of the file from which sums are
	sums    []tokenSum
	failure error
	// reported is the last logged error of reading a changed token file, and unread is the version of the file that caused it.
	reported string
	unread   stamp
}

// tokenSum is the SHA-256 sum of a token. A reader with an operator token may also see names and texts.
type tokenSum struct {
	sum      [sha256.Size]byte
	operator bool
}

// operatorWord stands before an operator token in a line of the token file.
const operatorWord = "operator "

// stamp identifies a version of a file.
type stamp struct {
	inode       uint64
	size        int64
	changedSec  int64
	changedNsec int64
}

// readTokens reads a token file. The file must belong to this process's user or to root, and no other user may have access.
// The error wraps ErrTokenFile.
func readTokens(path string) ([]tokenSum, stamp, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a named pipe must not block
	if err != nil {
		return nil, stamp{}, fmt.Errorf("%w: %w", ErrTokenFile, err)
	}
	defer func() { _ = f.Close() }()
	version, err := checkFile(f)
	if err != nil {
		return nil, stamp{}, fmt.Errorf("%w: %s %w", ErrTokenFile, path, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
	if err != nil {
		return nil, stamp{}, fmt.Errorf("%w: %w", ErrTokenFile, err)
	}
	sums := make([]tokenSum, 0, 1)
	for line := range bytes.Lines(data) {
		token, operator := bytes.CutPrefix(bytes.TrimSpace(line), []byte(operatorWord))
		token = bytes.TrimSpace(token)
		switch {
		case len(token) == 0:
			continue
		case len(token) < minToken:
			return nil, stamp{}, fmt.Errorf("%w: %s has a token of %d bytes; a token has at least %d", ErrTokenFile, path,
				len(token), minToken)
		}
		sums = append(sums, tokenSum{sha256.Sum256(token), operator})
	}
	if len(sums) == 0 {
		return nil, stamp{}, fmt.Errorf("%w: %s has no token", ErrTokenFile, path)
	}
	return sums, version, nil
}

// checkFile returns the version of an open file, or an error about its kind, owner, permissions or size.
func checkFile(f *os.File) (stamp, error) {
	info, err := f.Stat()
	if err != nil {
		return stamp{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.Mode().IsRegular():
		return stamp{}, errors.New("is not a regular file")
	case int(stat.Uid) != os.Geteuid() && stat.Uid != 0:
		return stamp{}, fmt.Errorf("belongs to user %d; it must belong to the worker's user or to root", stat.Uid)
	case info.Mode().Perm()&othersMayRead != 0:
		return stamp{}, fmt.Errorf("has permissions %04o; the group and others must have no access (chmod 0600)",
			info.Mode().Perm())
	case info.Size() > maxTokenFile:
		return stamp{}, fmt.Errorf("has more than %d bytes", maxTokenFile)
	}
	return stampOf(stat), nil
}

func stampOf(s *syscall.Stat_t) stamp {
	return stamp{inode: s.Ino, size: s.Size, changedSec: s.Ctim.Sec, changedNsec: s.Ctim.Nsec}
}

// current returns the sums of the tokens that are valid now. It checks the file for a change at most once in tokenRecheck.
func (t *tokens) current() ([]tokenSum, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if !t.checked.IsZero() && now.Sub(t.checked) < tokenRecheck {
		return t.sums, t.failure
	}
	t.checked = now
	var stat syscall.Stat_t
	invisible := syscall.Stat(t.path, &stat) != nil
	if !invisible && t.sums != nil && stampOf(&stat) == t.seen {
		return t.sums, nil
	}
	sums, seen, err := readTokens(t.path)
	if errors.Is(err, fs.ErrPermission) && t.sums != nil {
		again := t.reported == err.Error() && stampOf(&stat) == t.unread
		if !again && (!t.root || !invisible) {
			t.log.Warn().Err(err).Msg(lastContent)
		}
		t.reported, t.unread = err.Error(), stampOf(&stat)
		return t.sums, nil
	}
	t.sums, t.seen, t.failure, t.reported, t.root = sums, seen, err, "", false
	return t.sums, t.failure
}

// allows reports whether a request has a valid token: as a bearer token, or as the password of basic authentication, which can
// be part of a URL. The time of the comparison does not depend on how much of a token is right.
func (t *tokens) allows(r *http.Request) (bool, error) {
	valid, _, err := t.rights(r)
	return valid, err
}

// operator reports whether a request has an operator token as bearer token. A password of basic authentication does not give
// an operator's rights, because a browser sends it with every request.
func (t *tokens) operator(r *http.Request) bool {
	scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	_, operator, err := t.rights(r)
	return err == nil && operator && strings.EqualFold(scheme, "bearer")
}

// operatorToken returns the SHA-256 sum of the operator token of a request; false: the request has none.
func (s *Server) operatorToken(r *http.Request) (sum [sha256.Size]byte, ok bool) {
	if s.tokens == nil || !s.tokens.operator(r) {
		return sum, false
	}
	return sha256.Sum256([]byte(givenToken(r))), true
}

// rights reports whether the token of a request is valid, and whether it is an operator token.
func (t *tokens) rights(r *http.Request) (valid, operator bool, err error) {
	sums, err := t.current()
	if err != nil {
		return false, false, err
	}
	sum := sha256.Sum256([]byte(givenToken(r)))
	equal, operators := 0, 0
	for i := range sums {
		same := subtle.ConstantTimeCompare(sum[:], sums[i].sum[:])
		equal |= same
		if sums[i].operator {
			operators |= same
		}
	}
	return equal == 1, operators == 1, nil
}

// givenToken returns the token of a request; empty: the request has none.
func givenToken(r *http.Request) string {
	scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch strings.ToLower(scheme) {
	case "bearer":
		return strings.TrimSpace(rest)
	case "basic":
		_, password, _ := r.BasicAuth()
		return password
	}
	return ""
}
