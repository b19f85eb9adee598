package waits

import (
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestPreemption decides from texts of kernels. Facts without current are those of a process that cannot read debugfs.
func TestPreemption(t *testing.T) {
	const (
		dynamic = "#1 SMP PREEMPT_DYNAMIC Debian 6.12.48-1 (2025-09-20)"
		static  = "#1 SMP PREEMPT Wed Jan 1 00:00:00 UTC 2025"
		full    = "CONFIG_PREEMPT_BUILD=y\n# CONFIG_PREEMPT_NONE is not set\nCONFIG_PREEMPT=y\nCONFIG_PREEMPT_COUNT=y\n"
		lazy    = "CONFIG_PREEMPT_BUILD=y\n# CONFIG_PREEMPT is not set\nCONFIG_PREEMPT_LAZY=y\nCONFIG_PREEMPTION=y\n"
	)
	for name, test := range map[string]struct {
		facts preemptFacts
		want  preemption
	}{
		"no uname": {preemptFacts{}, preemptUnknown},
		"built without preemption": {
			preemptFacts{version: "#1 SMP Debian 4.19", commandLine: "preempt=full"}, preemptNone,
		},
		"real time": {preemptFacts{version: "#1 SMP PREEMPT_RT Debian 6.12.48-1"}, preemptFull},
		"real time, and lazy": {
			preemptFacts{version: "#1 SMP PREEMPT_RT x", current: "full (lazy) ", config: lazy}, preemptFull,
		},
		"static":                        {preemptFacts{version: static}, preemptUnknown},
		"static, full":                  {preemptFacts{version: static, config: full}, preemptFull},
		"static, lazy":                  {preemptFacts{version: static, config: lazy}, preemptLazy},
		"static, ignores the parameter": {preemptFacts{"6.12.0", static, "", "preempt=none", full}, preemptFull},

		"debugfs, none":      {preemptFacts{version: dynamic, current: "(none) voluntary full lazy \n"}, preemptNone},
		"debugfs, voluntary": {preemptFacts{version: dynamic, current: "none (voluntary) full \n"}, preemptVoluntary},
		"debugfs, full":      {preemptFacts{version: dynamic, current: "none voluntary (full) lazy \n"}, preemptFull},
		"debugfs, lazy":      {preemptFacts{version: dynamic, current: "full (lazy) \n"}, preemptLazy},
		"changed since the start": {
			preemptFacts{version: dynamic, current: "none voluntary (full)", commandLine: "preempt=none"}, preemptFull,
		},

		"parameter, none":      {preemptFacts{"6.12.0", dynamic, "", "ro preempt=none quiet", full}, preemptNone},
		"parameter, voluntary": {preemptFacts{"5.14.0-5.el9", dynamic, "", "preempt=voluntary", full}, preemptVoluntary},
		"parameter, full":      {preemptFacts{"6.12.0", dynamic, "", "preempt=full", ""}, preemptFull},
		"parameter, lazy":      {preemptFacts{"6.13.0", dynamic, "", "preempt=lazy", full}, preemptLazy},
		"no lazy before 6.13":  {preemptFacts{"6.12.0", dynamic, "", "preempt=lazy", full}, preemptFull},
		"no none since 7.0":    {preemptFacts{"7.0.1", dynamic, "", "preempt=none", full}, preemptFull},
		"lazy since 7.0":       {preemptFacts{"7.0.1", dynamic, "", "preempt=lazy", full}, preemptLazy},
		"the last counts":      {preemptFacts{"6.12.0", dynamic, "", "preempt=none preempt=full", ""}, preemptFull},
		"a wrong one is ignored": {
			preemptFacts{"6.12.0", dynamic, "", "preempt=none preempt=often", full}, preemptNone,
		},
		"quoted":                  {preemptFacts{"6.12.0", dynamic, "", `"preempt=full" a="b"`, ""}, preemptFull},
		"another parameter":       {preemptFacts{"6.12.0", dynamic, "", "module.preempt=none", full}, preemptFull},
		"of the first process":    {preemptFacts{"6.12.0", dynamic, "", "ro -- preempt=none", full}, preemptFull},
		"parameter, no release":   {preemptFacts{"", dynamic, "", "preempt=none", ""}, preemptUnknown},
		"build, full":             {preemptFacts{"6.12.0", dynamic, "", "ro", full}, preemptFull},
		"build, lazy":             {preemptFacts{"6.18.0", dynamic, "", "ro", lazy}, preemptLazy},
		"build, voluntary":        {preemptFacts{"6.1.0", dynamic, "", "", "CONFIG_PREEMPT_VOLUNTARY=y\n"}, preemptVoluntary},
		"build, none":             {preemptFacts{"6.1.0", dynamic, "", "", "CONFIG_PREEMPT_NONE=y"}, preemptNone},
		"build, none of the four": {preemptFacts{"6.1.0", dynamic, "", "", "CONFIG_PREEMPT_COUNT=y\n"}, preemptUnknown},
		"nothing can be read":     {preemptFacts{"6.1.0", dynamic, "", "", ""}, preemptUnknown},
	} {
		if got := test.facts.preemption(); got != test.want {
			t.Errorf("%s: %q, not %q", name, got, test.want)
		}
	}
}

// TestSkipsPrograms expects a reason for kernels that are or may be fully preemptive.
func TestSkipsPrograms(t *testing.T) {
	for _, mode := range []preemption{preemptNone, preemptVoluntary, preemptLazy} {
		if err := mode.skipsPrograms(); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
	for _, mode := range []preemption{preemptFull, preemptUnknown, "a later one"} {
		if err := mode.skipsPrograms(); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%q: %v", mode, err)
		}
	}
}

// TestReadFirst expects the first file that can be read. A damaged file is skipped.
func TestReadFirst(t *testing.T) {
	dir := t.TempDir()
	missing, damaged := filepath.Join(dir, "missing"), filepath.Join(dir, "damaged.gz")
	plain, packed := filepath.Join(dir, "plain"), filepath.Join(dir, "packed.gz")
	file, err := os.Create(packed)
	if err != nil {
		t.Fatal(err)
	}
	w := gzip.NewWriter(file)
	_, err = w.Write([]byte("packed"))
	err = errors.Join(err, w.Close(), file.Close(), os.WriteFile(plain, []byte("plain"), 0o600),
		os.WriteFile(damaged, []byte("damaged"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for want, names := range map[string][]string{
		"packed": {missing, damaged, packed, plain}, "plain": {missing, plain, packed}, "": {missing, damaged},
	} {
		if got := readFirst(names...); got != want {
			t.Errorf("%q: %q", names, got)
		}
	}
}
