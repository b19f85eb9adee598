package spool

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"pg_stat_backtrace/worker/limits"
)

// Protocol is the version of the protocol between SQL and worker.
const Protocol = 1

// Request is the request of one waiting call.
type Request struct {
	// ID is the name of the request, a UUID.
	ID string
	// Caller is the oid of the calling role, and CallerName its name at that time. Superuser reports whether it is a
	// superuser.
	Caller     uint32
	CallerName string
	Superuser  bool
	// Backend is the pid of the backend that waits for the answer.
	Backend int
	// Database is the caller's database. Encoding is that database's encoding, as getdatabaseencoding() returns it.
	Database string
	Encoding string
	// Targets are the process ids that the caller gave. They are not checked. Nil means all processes of the cluster.
	Targets []int
	// Verb is the command: "get", "log" and so on; see Config.Verbs.
	Verb string
	// Deadline is the time at which the caller stops waiting.
	Deadline time.Time
	// Settings are the caller's settings pg_stat_backtrace.*, by their names without this prefix. Settings that are not set
	// are absent.
	Settings map[string]string
}

// parse reads a request file. The file is one line of words separated by single spaces: protocol, id, verb, targets (numbers
// separated by commas, or a star for all), milliseconds to the deadline, caller's oid, t or f for superuser, backend,
// encoding, caller's name and database in hex, any number of setting=hex, and the signature of all words before it. The
// milliseconds are counted from the time written, at which the file was written. The error wraps ErrBadRequest.
func parse(id string, data []byte, k key, written time.Time) (Request, error) {
	line, complete := bytes.CutSuffix(data, []byte{'\n'})
	if !complete {
		return Request{}, fmt.Errorf("%w %s: not a line", ErrBadRequest, id)
	}
	at := bytes.LastIndexByte(line, ' ')
	if at < 0 || !k.verify(line[:at], string(line[at+1:])) {
		return Request{}, fmt.Errorf("%w %s: not signed by this cluster's extension", ErrBadRequest, id)
	}
	req, budget, err := parseBody(string(line[:at]))
	if err != nil {
		return Request{}, fmt.Errorf("%w %s: %w", ErrBadRequest, id, err)
	}
	if req.ID != id {
		return Request{}, fmt.Errorf("%w %s: it is that of %s", ErrBadRequest, id, req.ID)
	}
	req.Deadline = written.Add(budget)
	return req, nil
}

const fixedFields = 11

// parseBody reads the signed part of a request, and returns the time to the deadline too. It checks every number and name,
// although only the extension can have signed them.
func parseBody(body string) (Request, time.Duration, error) {
	f := strings.Split(body, " ")
	if len(f) < fixedFields || f[0] != strconv.Itoa(Protocol) {
		return Request{}, 0, fmt.Errorf("not of protocol version %d", Protocol)
	}
	p := fields{f: f}
	req := Request{
		ID:         p.name(1, isUUID),
		Verb:       p.name(2, isVerb),
		Targets:    p.targets(3),
		Caller:     uint32(p.number(5, 1<<32-1)),
		Superuser:  p.name(6, isFlag) == "t",
		Backend:    int(p.number(7, 1<<31-1)),
		Encoding:   p.name(8, isEncoding),
		CallerName: p.text(9),
		Database:   p.text(10),
		Settings:   make(map[string]string, len(f)-fixedFields),
	}
	budget := time.Duration(p.number(4, 99999)) * time.Millisecond
	for i, s := range f[fixedFields:] {
		name, value, found := strings.Cut(s, "=")
		if _, twice := req.Settings[name]; !found || twice || !isSetting(name) {
			return Request{}, 0, fmt.Errorf("field %d is not a setting", fixedFields+i)
		}
		req.Settings[name] = p.unhex(fixedFields+i, value)
	}
	if p.err != nil {
		return Request{}, 0, p.err
	}
	return req, budget, nil
}

// fields has the words of a request. Its methods convert them, and keep the first error in err.
type fields struct {
	f   []string
	err error
}

func (p *fields) fail(i int, what string) {
	if p.err == nil {
		p.err = fmt.Errorf("field %d is not a valid %s", i, what)
	}
}

func (p *fields) name(i int, valid func(string) bool) string {
	if !valid(p.f[i]) {
		p.fail(i, "name")
	}
	return p.f[i]
}

// number accepts 1 to high in plain decimal digits only, as PostgreSQL prints them.
func (p *fields) number(i int, high uint64) uint64 {
	n, err := strconv.ParseUint(p.f[i], 10, 64)
	if err != nil || n == 0 || n > high || p.f[i] != strconv.FormatUint(n, 10) {
		p.fail(i, "number in its range")
	}
	return n
}

// targets accepts a star, or an array of integers as PostgreSQL prints it, without the braces.
func (p *fields) targets(i int) []int {
	if p.f[i] == "*" {
		return nil
	}
	words := strings.Split(p.f[i], ",")
	if len(words) > limits.MaxTargets {
		p.fail(i, "list of so many processes")
		return nil
	}
	targets := make([]int, len(words))
	for j, word := range words {
		n, err := strconv.ParseInt(word, 10, 32)
		if err != nil || word != strconv.FormatInt(n, 10) {
			p.fail(i, "list of processes")
			return nil
		}
		targets[j] = int(n)
	}
	return targets
}

func (p *fields) text(i int) string { return p.unhex(i, p.f[i]) }

// unhex decodes a name.
func (p *fields) unhex(i int, s string) string {
	b, err := hex.DecodeString(s)
	if err != nil || bytes.IndexByte(b, 0) >= 0 {
		p.fail(i, "text in hex")
		return ""
	}
	return Text(b)
}

// Text returns a text of a database as in Request. Bytes that are not UTF-8 become \xNN, because a database may have another
// encoding or none.
func Text(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&out, `\x%02x`, b[0])
		} else {
			out.Write(b[:size])
		}
		b = b[size:]
	}
	return out.String()
}

// isUUID accepts a UUID as PostgreSQL prints it. Such a name cannot be a path.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		hexadecimal := s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'f'
		if dash != (s[i] == '-') || !dash && !hexadecimal {
			return false
		}
	}
	return true
}

func isFlag(s string) bool     { return s == "t" || s == "f" }
func isVerb(s string) bool     { return word(s, 16, "_") }
func isSetting(s string) bool  { return word(s, 32, "_0123456789") }
func isEncoding(s string) bool { return word(strings.ToLower(s), 32, "_0123456789") }

// word reports whether s has 1 to limit characters, each of which is a lower-case letter or a character of the text
// others.
func word(s string, limit int, others string) bool {
	outside := func(r rune) bool { return (r < 'a' || r > 'z') && !strings.ContainsRune(others, r) }
	return s != "" && len(s) <= limit && strings.IndexFunc(s, outside) < 0
}

// patience is the time for which a request may run after its deadline. The call waits for an answer until one second after the
// deadline. So a handler that waited until the deadline can still report the cause.
const patience = 500 * time.Millisecond

// context returns a handler's context, which ends at the request's deadline plus patience. A worker that shuts down
// finishes running requests, so the end of ctx does not end it.
func (r Request) context(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(context.WithoutCancel(ctx), r.Deadline.Add(patience))
}
