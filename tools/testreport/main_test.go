package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const stream = `# a message of the go command
{"Action":"start","Package":"a"}
{"Action":"run","Package":"a","Test":"TestGood"}
{"Action":"output","Package":"a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"a","Test":"TestGood","Output":"    good_test.go:1: of no interest\n"}
{"Action":"attr","Package":"a","Test":"TestGood","Key":"figure","Value":"7 of 7 rows equal"}
{"Action":"attr","Package":"a","Test":"TestGood","Key":"other","Value":"of no interest"}
{"Action":"pass","Package":"a","Test":"TestGood","Elapsed":0.1}
{"Action":"run","Package":"a","Test":"TestBad"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"    bad_test.go:2: got 1\n"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"    server_test.go:3: the log:\n"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"        1\n"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"        2\n"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"        3\n"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"        4\n"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"        5\n"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"        6\n"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"        7\n"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"    bad_test.go:4: got 8\n"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"--- FAIL: TestBad (0.00s)\n"}
{"Action":"fail","Package":"a","Test":"TestBad","Elapsed":0}
{"Action":"run","Package":"a","Test":"TestLater"}
{"Action":"output","Package":"a","Test":"TestLater","Output":"    later_test.go:3: no disk\n"}
{"Action":"output","Package":"a","Test":"TestLater","Output":"--- SKIP: TestLater (0.00s)\n"}
{"Action":"skip","Package":"a","Test":"TestLater","Elapsed":0}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"fail","Package":"a","Elapsed":1.25}
{"Action":"pass","Package":"b","Elapsed":0.5}
{"ImportPath":"c","Action":"build-output","Output":"c.go:1: does not build\n"}
{"Action":"fail","Package":"c","Elapsed":0,"FailedBuild":"c"}
{"Action":"skip","Package":"d","Elapsed":0}
{"Action":"run","Package":"e","Test":"TestCut"}
{"Action":"output","Package":"e","Test":"TestCut","Output":"=== RUN   TestCut\n"}
{"Action":"output","Package":"e","Test":"TestCut","Output":"panic: cut\n"}
{"Action":"output","Package":"e","Output":"signal: killed\n"}
{"Action":"fail","Package":"e","Elapsed":2}
`

func TestReport(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	if r.passed != 1 || r.failed != 1 || r.skipped != 1 || !r.broken {
		t.Errorf("passed %d, failed %d, skipped %d, broken %t", r.passed, r.failed, r.skipped, r.broken)
	}
	for _, want := range []string{
		"# a message of the go command\n",
		"      TestGood: 7 of 7 rows equal\n",
		"    bad_test.go:2: got 1\n    server_test.go:3: the log:\n        1\n", "        7\n",
		"    bad_test.go:4: got 8\n--- FAIL: TestBad",
		"skip  a TestLater: later_test.go:3: no disk\n",
		"FAIL  a  ", "ok    b  ", "c.go:1: does not build\n", "FAIL  c  ",
		" 2.0 s\nsignal: killed\nTestCut had not ended\npanic: cut\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "of no interest") {
		t.Errorf("the output of a test that passed is there:\n%s", out.String())
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	r := newReport(io.Discard)
	in := stream + `{"Action":"pass","Package":"f","Test":"TestLong/part","Elapsed":12.5}
{"Action":"pass","Package":"f","Test":"TestLong","Elapsed":12.5}
`
	if err := r.read(strings.NewReader(in)); err != nil {
		t.Fatal(err)
	}
	const want = "0.10 a TestGood\n0.00 a TestBad\n12.50 f TestLong\n"
	if got := r.times.String(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "failures")
	for range 2 {
		r := newReport(io.Discard)
		if err := r.read(strings.NewReader(stream)); err != nil {
			t.Fatal(err)
		}
		if err := r.writeFailures(name); err != nil {
			t.Fatal(err)
		}
	}
	const once = `a TestBad
    bad_test.go:2: got 1
    server_test.go:3: the log:
        1
        2
        3
        4
        5
        ...
    bad_test.go:4: got 8
c.go:1: does not build
c
e
signal: killed
e TestCut had not ended
panic: cut
`
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != once+once {
		t.Errorf("got:\n%s", got)
	}
	if err := new(report).writeFailures(filepath.Join(t.TempDir(), "none", "failures")); err != nil {
		t.Errorf("nothing failed, and nothing could be written: %v", err)
	}
}

func TestAgain(t *testing.T) {
	t.Parallel()
	failed := `{"Action":"fail","Package":"a","Test":"TestBad/18","Elapsed":0}
{"Action":"fail","Package":"a","Test":"TestBad","Elapsed":0}
`
	const end = `{"Action":"fail","Package":"a","Elapsed":1.25}
`
	whole := failed + `{"Action":"output","Package":"a","Output":"FAIL\n"}
` + end
	for in, want := range map[string]string{"": "", whole: "a TestBad\n", failed + end: "", stream: ""} {
		r := newReport(io.Discard)
		name := filepath.Join(t.TempDir(), "again")
		if err := r.read(strings.NewReader(in)); err != nil {
			t.Fatal(err)
		}
		if err := r.writeAgain(name); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%q, %v, want %q, for\n%s", got, err, want, in)
		}
	}
}
