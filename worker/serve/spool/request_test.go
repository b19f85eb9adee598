package spool

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pg_stat_backtrace/worker/limits"
)

const testID = "0bd72d4f-fa03-4bde-9084-36943480125d"

// body returns the signed part of a request, with some of its fields replaced.
func body(changes map[int]string, settings ...string) string {
	f := []string{"1", testID, "get", "4711", "3000", "16384", "f", "4712", "LATIN1",
		hex.EncodeToString([]byte("alice")), hex.EncodeToString([]byte("b\xe9ta"))}
	for i, v := range changes {
		f[i] = v
	}
	return strings.Join(append(f, settings...), " ")
}

func TestParse(t *testing.T) {
	var k key
	b := body(nil, "max_frames=3132", "timeout=")
	written := time.Now().Add(-time.Second)
	got, err := parse(testID, []byte(b+" "+k.sign([]byte(b))+"\n"), k, written)
	if err != nil {
		t.Fatal(err)
	}
	want := Request{
		ID: testID, Caller: 16384, CallerName: "alice", Backend: 4712, Database: `b\xe9ta`, Encoding: "LATIN1",
		Targets: []int{4711}, Verb: "get", Deadline: written.Add(3 * time.Second),
		Settings: map[string]string{"max_frames": "12", "timeout": ""},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseTargets(t *testing.T) {
	for text, want := range map[string][]int{"*": nil, "1": {1}, "0,-1,2147483647": {0, -1, 2147483647}} {
		if got, _, err := parseBody(body(map[int]string{3: text})); err != nil || !reflect.DeepEqual(got.Targets, want) {
			t.Errorf("%s: %v, %v", text, got.Targets, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	var k key
	signed := func(b string) string { return b + " " + k.sign([]byte(b)) + "\n" }
	whole := signed(body(nil))
	for name, data := range map[string]string{
		"empty":                "",
		"only a line end":      "\n",
		"no line end":          strings.TrimSuffix(whole, "\n"),
		"unsigned":             body(nil) + "\n",
		"another key":          body(nil) + " " + key{1}.sign([]byte(body(nil))) + "\n",
		"changed":              strings.Replace(whole, " f ", " t ", 1),
		"signed twice":         signed(strings.TrimSuffix(whole, "\n")),
		"two lines":            whole + whole,
		"of another file":      signed(body(map[int]string{1: strings.Repeat("0", 8) + testID[8:]})),
		"protocol":             signed(body(map[int]string{0: "2"})),
		"id":                   signed(body(map[int]string{1: "../../etc/passwd"})),
		"verb":                 signed(body(map[int]string{2: "GET"})),
		"no verb":              signed(body(map[int]string{2: ""})),
		"no target":            signed(body(map[int]string{3: ""})),
		"target missing":       signed(body(map[int]string{3: "1,,2"})),
		"too many targets":     signed(body(map[int]string{3: strings.Repeat("1,", limits.MaxTargets) + "1"})),
		"target too large":     signed(body(map[int]string{3: "2147483648"})),
		"target with a plus":   signed(body(map[int]string{3: "+1"})),
		"target with a zero":   signed(body(map[int]string{3: "01"})),
		"deadline":             signed(body(map[int]string{4: "100000"})),
		"caller 0":             signed(body(map[int]string{5: "0"})),
		"caller too large":     signed(body(map[int]string{5: "4294967296"})),
		"superuser":            signed(body(map[int]string{6: "true"})),
		"encoding":             signed(body(map[int]string{8: "utf-8"})),
		"name not in hex":      signed(body(map[int]string{9: "zz"})),
		"name with a NUL":      signed(body(map[int]string{9: "610062"})),
		"setting without =":    signed(body(nil, "max_frames")),
		"setting without name": signed(body(nil, "=31")),
		"setting twice":        signed(body(nil, "a=31", "a=32")),
		"setting not in hex":   signed(body(nil, "a=3")),
		"two spaces":           signed(strings.Replace(body(nil), " get", "  get", 1)),
		"too few fields":       signed("1 " + testID + " get 4711"),
	} {
		if got, err := parse(testID, []byte(data), k, time.Now()); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

// FuzzParseRequest feeds signed parts only, because other input is refused earlier. An accepted request must be equal
// after it has been written and parsed again.
func FuzzParseRequest(f *testing.F) {
	f.Add(body(nil))
	f.Add(body(map[int]string{9: "ff00"}, "max_frames=3132"))
	f.Add(body(map[int]string{2: "stat", 3: "*"}))
	f.Add(body(map[int]string{2: "logs", 3: "1,-2147483648,0"}))
	f.Add(body(map[int]string{3: "2147483647", 5: "4294967295"}, "a=", "b="))
	f.Fuzz(func(t *testing.T, b string) {
		req, budget, err := parseBody(b)
		if err != nil {
			if !reflect.DeepEqual(req, Request{}) || budget != 0 {
				t.Fatalf("both %+v and %v", req, err)
			}
			return
		}
		if !isUUID(req.ID) || len(req.Targets) > limits.MaxTargets || req.Backend <= 0 || req.Caller == 0 || budget <= 0 ||
			!utf8.ValidString(req.CallerName) || !utf8.ValidString(req.Database) || strings.ContainsRune(req.Database, 0) {
			t.Fatalf("%q: %+v", b, req)
		}
		again, budget2, err := parseBody(written(req, budget))
		if err != nil || !reflect.DeepEqual(again, req) || budget2 != budget {
			t.Fatalf("%q: %+v, written again: %+v, %v", b, req, again, err)
		}
	})
}

func written(r Request, budget time.Duration) string {
	flag := "f"
	if r.Superuser {
		flag = "t"
	}
	var s strings.Builder
	targets := "*"
	if r.Targets != nil {
		targets = strings.Trim(strings.Join(strings.Fields(fmt.Sprint(r.Targets)), ","), "[]")
	}
	fmt.Fprintf(&s, "1 %s %s %s %d %d %s %d %s %x %x", r.ID, r.Verb, targets, budget.Milliseconds(), r.Caller, flag,
		r.Backend, r.Encoding, r.CallerName, r.Database)
	for _, name := range slices.Sorted(maps.Keys(r.Settings)) {
		fmt.Fprintf(&s, " %s=%x", name, r.Settings[name])
	}
	return s.String()
}

func TestIsUUID(t *testing.T) {
	if !isUUID(testID) {
		t.Error(testID)
	}
	for _, s := range []string{"", ".", "..", strings.ToUpper(testID), testID + "x", testID[1:],
		strings.ReplaceAll(testID, "-", "0"),
		"../" + testID[3:], testID[:35] + "/"} {
		if isUUID(s) {
			t.Errorf("%q", s)
		}
	}
}
