package render

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// field is a field of a log line. value is the field's value as the line has it, in JSON with escapes.
type field struct {
	name  string
	value json.RawMessage
}

// line is a parsed line of the worker's log.
type line struct {
	level, time, message string
	rest                 []field
}

// errNotLine means that a text is not a line of the worker's log.
var errNotLine = errors.New("not a line of the log")

// parse parses a line of the log. It returns errNotLine if the text is not a JSON object.
func parse(text []byte) (l line, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return l, errNotLine
	}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return l, errNotLine
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return l, errNotLine
		}
		into := map[string]*string{"level": &l.level, "time": &l.time, "message": &l.message}[name]
		if into == nil || json.Unmarshal(value, into) != nil {
			l.rest = append(l.rest, field{name, value})
		}
	}
	return l, nil
}

// severity is a level of the log in the terms of OpenTelemetry and of syslog.
type severity struct {
	text     string // OpenTelemetry: SeverityText
	number   int    // OpenTelemetry: SeverityNumber
	priority int    // syslog(3)
}

var severities = map[string]severity{
	"trace": {"TRACE", 1, 7}, "debug": {"DEBUG", 5, 7}, "info": {"INFO", 9, 6}, "warn": {"WARN", 13, 4},
	"error": {"ERROR", 17, 3}, "fatal": {"FATAL", 21, 2}, "panic": {"FATAL", 21, 2},
}

func (l *line) severity() severity {
	if s, ok := severities[l.level]; ok {
		return s
	}
	return severities["info"]
}

// OTel converts lines of the worker's log to the field names of OpenTelemetry's log data model, and writes them to To.
type OTel struct{ To io.Writer }

// Write converts and writes a line. If text is not a line of the log, it writes the text unchanged.
func (o OTel) Write(text []byte) (int, error) {
	out, err := otel(text)
	if err != nil {
		out = text
	}
	if _, err := o.To.Write(out); err != nil {
		return 0, err
	}
	return len(text), nil
}

// otel returns a line of the log with OpenTelemetry's field names.
func otel(text []byte) ([]byte, error) {
	l, err := parse(text)
	if err != nil {
		return nil, err
	}
	s := l.severity()
	var b bytes.Buffer
	b.WriteByte('{')
	if l.time != "" {
		fmt.Fprintf(&b, `"timestamp":%s,`, quoted(l.time))
	}
	fmt.Fprintf(&b, `"severity_text":"%s","severity_number":%d,"body":%s,"attributes":{`, s.text, s.number,
		quoted(l.message))
	for i, f := range l.rest {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s:%s", quoted(f.name), f.value)
	}
	b.WriteString("}}\n")
	return b.Bytes(), nil
}

// quoted returns a text as JSON.
func quoted(text string) []byte {
	data, err := json.Marshal(text)
	if err != nil {
		return []byte(`""`) // impossible: each string can be encoded
	}
	return VisibleJSON(data)
}

// journalSocket is the socket on which journald listens (systemd-journald.service(8)).
const journalSocket = "/run/systemd/journal/socket"

// IsJournal reports whether a file is connected to journald. journalStream is the value of the variable JOURNAL_STREAM: device and
// inode of the stream to journald (systemd.exec(5)).
func IsJournal(f *os.File, journalStream string) bool {
	device, inode, found := strings.Cut(journalStream, ":")
	wantDevice, err1 := strconv.ParseUint(device, 10, 64)
	wantInode, err2 := strconv.ParseUint(inode, 10, 64)
	info, err := f.Stat()
	if !found || err1 != nil || err2 != nil || err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Dev == wantDevice && stat.Ino == wantInode
}

// Journal sends lines of the worker's log to journald, with their fields.
type Journal struct {
	// Else gets the lines that cannot be sent to journald.
	Else io.Writer
	// Path is the socket; empty: journalSocket.
	Path string

	conn *net.UnixConn
}

// Write sends a line. It returns only errors of Else. It is not for concurrent use.
func (j *Journal) Write(text []byte) (int, error) {
	l, err := parse(text)
	if err == nil {
		err = j.send(&l)
	}
	if err != nil {
		if _, err := j.Else.Write(text); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}

// send sends a line as a datagram. If this fails, it connects again and retries once, since journald may have been restarted.
func (j *Journal) send(l *line) error {
	data := datagram(l, true)
	for try := range 2 {
		if j.conn == nil {
			path := j.Path
			if path == "" {
				path = journalSocket
			}
			conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
			if err != nil {
				return err
			}
			j.conn = conn
		}
		_, err := j.conn.Write(data)
		if errors.Is(err, unix.EMSGSIZE) {
			_, err = j.conn.Write(datagram(l, false))
		}
		if err == nil {
			return nil
		}
		_ = j.conn.Close()
		j.conn = nil
		if try > 0 {
			return err
		}
	}
	return nil
}

// Close closes the connection.
func (j *Journal) Close() error {
	if j.conn == nil {
		return nil
	}
	return j.conn.Close()
}

// Bounds of a datagram.
const (
	maxMessage = 16 << 10
	maxName    = 64 // bytes of a field's name; the limit of journald
)

// datagram encodes a line in journald's native protocol. The field MESSAGE has the message and all fields of the line, for readers
// of journalctl. If whole is set, each field of the line is also a field of the datagram.
func datagram(l *line, whole bool) []byte {
	var b bytes.Buffer
	var text strings.Builder
	text.WriteString(l.message)
	for _, f := range l.rest {
		text.WriteString(" " + f.name + "=" + plain(f.value, true))
	}
	message := text.String()
	put(&b, "MESSAGE", shown(message[:min(len(message), maxMessage)]))
	put(&b, "PRIORITY", strconv.Itoa(l.severity().priority))
	put(&b, "SYSLOG_IDENTIFIER", "pg_stat_backtrace")
	put(&b, "PGSB_EVENT", shown(l.message))
	if whole {
		for _, f := range l.rest {
			put(&b, fieldName(f.name), shown(plain(f.value, false)))
		}
	}
	return b.Bytes()
}

// put writes a field of a datagram. In the protocol, a value of several lines is preceded by its length.
func put(b *bytes.Buffer, name, value string) {
	b.WriteString(name)
	if !strings.Contains(value, "\n") {
		b.WriteString("=" + value + "\n")
		return
	}
	b.WriteByte('\n')
	b.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(value))))
	b.WriteString(value + "\n")
}

// fieldName makes a field name that journald accepts. Its prefix makes it different from the names of journald's own
// fields.
func fieldName(name string) string {
	name = "PGSB_" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '_'
	}, name)
	return name[:min(len(name), maxName)]
}

// plain returns the text of a JSON value. If quotes is set, empty texts and texts with spaces, quotes or = stay in quotes.
func plain(value json.RawMessage, quotes bool) string {
	var text string
	if json.Unmarshal(value, &text) != nil || quotes && strings.ContainsAny(text, " \"=\n") || quotes && text == "" {
		return string(value)
	}
	return text
}

// shown escapes characters that are not VisibleRune, except line feeds and tabs.
func shown(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if !strings.ContainsFunc(text, hiddenRune) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if hiddenRune(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func hiddenRune(r rune) bool { return r != '\n' && r != '\t' && !VisibleRune(r) }
