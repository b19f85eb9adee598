package spool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestKeyRenewed checks that a key is used for a day, and that the previous key is accepted for another minute.
func TestKeyRenewed(t *testing.T) {
	t.Parallel()
	var r keyring
	now := time.Now()
	renew := func(after time.Duration) []key {
		t.Helper()
		if err := r.renew(now.Add(after)); err != nil {
			t.Fatal(err)
		}
		r.wasPublished(now.Add(after))
		return r.accepted()
	}
	first := renew(0)
	if len(first) != 1 || first[0] == (key{}) || r.signing() != first[0] {
		t.Fatalf("at the start there are %d keys", len(first))
	}
	if same := renew(23 * time.Hour); len(same) != 1 || same[0] != first[0] {
		t.Error("the key was renewed within a day")
	}
	second := renew(24 * time.Hour)
	if len(second) != 2 || second[0] == first[0] || second[1] != first[0] || r.signing() != second[0] {
		t.Error("after a day there is no new key, or the one before is not accepted")
	}
	if soon := renew(24*time.Hour + 30*time.Second); len(soon) != 2 {
		t.Error("the key before is refused at once")
	}
	if late := renew(24*time.Hour + time.Minute); len(late) != 1 || late[0] != second[0] {
		t.Error("the key before is still accepted")
	}
}

// TestKeyInPidFile checks that housekeeping publishes a new key, and that requests signed with the previous one are
// answered.
func TestKeyInPidFile(t *testing.T) {
	t.Parallel()
	s, err := Open(Config{DataDir: t.TempDir(), Base: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	before := s.keys.signing()
	s.keys.mu.Lock()
	s.keys.published = s.keys.published.Add(-keyLife)
	s.keys.mu.Unlock()
	if err := s.checkPeriodically(time.Now()); err != nil {
		t.Fatal(err)
	}
	inner, _ := s.keys.signing().blocks()
	data, err := os.ReadFile(filepath.Join(s.cfg.DataDir, pidName))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(string(data), "\n"); lines[6] != inner || s.keys.signing() == before {
		t.Error("the pid file has the old key")
	}
	body := "1 " + id(1) + " get 100 3000 10 t 1 UTF8 61 61"
	line := []byte(body + " " + before.sign([]byte(body)) + "\n")
	found := 0
	for _, k := range s.keys.accepted() {
		if _, err := parse(id(1), line, k, time.Now()); err == nil {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%d of the keys accept a request that is on its way", found)
	}
}

// TestKeyNotPublished: while the pid file cannot be written, as on a full file system, requests with its key are answered.
func TestKeyNotPublished(t *testing.T) {
	t.Parallel()
	s, err := Open(Config{DataDir: t.TempDir(), Base: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	path := filepath.Join(s.cfg.DataDir, pidName)
	obstacle := path + ".tmp/obstacle" // the directory with it cannot be removed
	if err := os.MkdirAll(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	accepted := func(after time.Duration) bool {
		t.Helper()
		if err := s.checkPeriodically(now.Add(after)); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range s.keys.accepted() {
			if inner, _ := k.blocks(); strings.Split(string(data), "\n")[6] == inner {
				return true
			}
		}
		return false
	}
	before := s.keys.signing()
	for _, after := range []time.Duration{keyLife, keyLife + 2*keyGrace, 3 * keyLife} {
		if !accepted(after) {
			t.Errorf("%v after the start, the key of the pid file is refused", after)
		}
	}
	if err := os.RemoveAll(filepath.Dir(obstacle)); err != nil {
		t.Fatal(err)
	}
	if !accepted(3*keyLife+keyGrace) || len(s.keys.accepted()) != 2 {
		t.Error("the former key is refused as soon as the pid file has the new one")
	}
	if !accepted(3*keyLife+2*keyGrace) || len(s.keys.accepted()) != 1 || s.keys.signing() == before {
		t.Error("the former key is still accepted")
	}
}
