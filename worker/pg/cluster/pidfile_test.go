package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParsePIDFile(t *testing.T) {
	const full = "4711\n/var/lib/postgresql/15/main\n1700000000\n" +
		"5433\n/run/postgresql\nlocalhost\n  5432001        12\nready   \n"
	minimal := func(pid, port int) pidFile {
		return pidFile{pid: pid, dataDir: "/d", started: time.Unix(5, 0), port: port, opening: true}
	}
	for name, test := range map[string]struct {
		data string
		want pidFile
		bad  bool
	}{
		"running": {data: full, want: pidFile{
			pid: 4711, dataDir: "/var/lib/postgresql/15/main", started: time.Unix(1700000000, 0), port: 5433,
			socketDir: "/run/postgresql", address: "localhost", shmID: 12,
		}},
		"told to stop": {data: strings.Replace(full, "ready   ", "stopping", 1), want: pidFile{
			pid: 4711, dataDir: "/var/lib/postgresql/15/main", started: time.Unix(1700000000, 0), port: 5433,
			socketDir: "/run/postgresql", address: "localhost", shmID: 12, stopping: true,
		}},
		"starting":    {data: "7\n/d\n5\n5432\n\n", want: minimal(7, 5432)},
		"three lines": {data: "7\n/d\n5\n", want: minimal(7, 0)},
		"stand-alone": {data: "-7\n/d\n5\n", want: minimal(-7, 0)},
		"no Unix socket": {data: "7\n/d\n5\n1\n\n*\n", want: pidFile{
			pid: 7, dataDir: "/d", started: time.Unix(5, 0), port: 1, address: "*", opening: true,
		}},
		"port out of range":   {data: "7\n/d\n5\n65536\n/s\n", want: minimal(7, 0)},
		"empty":               {bad: true},
		"written half":        {data: "4711\n/var/lib", bad: true},
		"no process":          {data: "0\n/d\n5\n", bad: true},
		"no number":           {data: "x\n/d\n5\n", bad: true},
		"number too large":    {data: "2147483648\n/d\n5\n", bad: true},
		"no negative of it":   {data: "-2147483648\n/d\n5\n", bad: true},
		"no directory":        {data: "7\n\n5\n", bad: true},
		"no time":             {data: "7\n/d\n\n", bad: true},
		"time before any":     {data: "7\n/d\n-5\n", bad: true},
		"a NUL in a path":     {data: "7\n/d\x00e\n5\n", bad: true},
		"too long to be true": {data: full + strings.Repeat("x", maxPIDFile), bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parsePIDFile([]byte(test.data))
			if test.bad != errors.Is(err, errBadPIDFile) || got != test.want {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

func FuzzParsePIDFile(f *testing.F) {
	f.Add([]byte("4711\n/data\n1700000000\n5433\n/run/postgresql\nlocalhost\n  5432001        12\nready   \n"))
	f.Add([]byte("-1\n/\n0\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parsePIDFile(data)
		if err != nil {
			if got != (pidFile{}) || !errors.Is(err, errBadPIDFile) {
				t.Errorf("an error and %+v: %v", got, err)
			}
			return
		}
		if got.pid == 0 || got.pid != int(int32(got.pid)) || got.dataDir == "" || got.port < 0 || got.port > 65535 {
			t.Errorf("%+v", got)
		}
	})
}

// TestErrorsRepeatNoContent: the file may be another one, which its user cannot read.
func TestErrorsRepeatNoContent(t *testing.T) {
	const secret = "53cr3t"
	for _, data := range []string{
		secret, secret + "\n/d\n5\n", "7\n/d\n" + secret + "\n", "7\n" + secret + "\x00\n5\n", secret + "\n\n\n\n\n",
	} {
		if _, err := parsePIDFile([]byte(data)); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", data, err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "PG_VERSION"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ByDataDir(dir); !errors.Is(err, ErrNotDataDir) || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
}
