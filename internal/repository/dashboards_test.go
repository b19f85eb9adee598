package repository

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dashboardFolder = top + "/packaging/grafana"

// dashboard has the fields of Grafana's dashboard model that the tests check.
type dashboard struct {
	UID, Title, Description string
	Panels                  []panel
	Templating              struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
}

type panel struct {
	ID          int
	Type, Title string
	Datasource  struct{ Type, UID string }
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr, LegendFormat string }
	FieldConfig struct{ Defaults struct{ Unit string } }
}

// load returns the dashboards by file name.
func load(t *testing.T) map[string]dashboard {
	t.Helper()
	paths, err := filepath.Glob(dashboardFolder + "/*.json")
	if err != nil || len(paths) < 2 {
		t.Fatal("dashboards are missing", paths, err)
	}
	all := map[string]dashboard{}
	for _, path := range paths {
		var d dashboard
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, &d)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all[filepath.Base(path)] = d
	}
	return all
}

func TestForm(t *testing.T) {
	t.Parallel()
	uids := map[string]bool{}
	for file, d := range load(t) {
		if d.UID == "" || d.Title == "" || d.Description == "" || uids[d.UID] {
			t.Errorf("%s: uid %q, title %q, description %q", file, d.UID, d.Title, d.Description)
		}
		uids[d.UID] = true
		const columns = 24
		taken := map[[2]int]string{}
		for _, p := range d.Panels {
			if p.Title == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
				t.Errorf("%s: panel %d (%q) lacks a title, a unit, a query or the data source", file, p.ID, p.Title)
			}
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other, there := taken[[2]int{x, y}]; there || x >= columns {
						t.Fatalf("%s: panel %q covers %q, or is too wide", file, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
		}
	}
}

var (
	metric     = regexp.MustCompile(`pg_stat_backtrace_[a-z_]+`)
	histograms = regexp.MustCompile(`_(bucket|count|sum)$`)
)

// TestNames compares the metrics in dashboards and rules with the manual.
func TestNames(t *testing.T) {
	t.Parallel()
	manual := read(t, top+"/doc/metrics.md")
	for _, pattern := range []string{"*.json", "alerts.yaml"} {
		paths, err := filepath.Glob(filepath.Join(dashboardFolder, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatal(pattern, err)
		}
		for _, path := range paths {
			for _, name := range metric.FindAllString(read(t, path), -1) {
				if !strings.Contains(manual, "`"+histograms.ReplaceAllString(name, "")+"`") {
					t.Errorf("%s: doc/metrics.md has no metric %s", filepath.Base(path), name)
				}
			}
		}
	}
}

// TestAlerts runs promtool's tests, and looks for a test in which each alert fires and one in which it stays silent.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (package prometheus): ", err)
	}
	for _, words := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		command := exec.CommandContext(t.Context(), promtool, words...)
		command.Dir = dashboardFolder
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(words, " "), err, out)
		}
	}
	var fires, silent []string
	for _, m := range regexp.MustCompile(`alertname: (\w+)\n +exp_alerts:( \[\])?`).
		FindAllStringSubmatch(read(t, dashboardFolder+"/alerts_test.yaml"), -1) {
		if m[2] == "" {
			fires = append(fires, m[1])
		} else {
			silent = append(silent, m[1])
		}
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(read(t, dashboardFolder+"/alerts.yaml"), -1) {
		if !slices.Contains(fires, m[1]) || !slices.Contains(silent, m[1]) {
			t.Errorf("alert %s: a test in which it fires: %v, in which it is silent: %v", m[1],
				slices.Contains(fires, m[1]), slices.Contains(silent, m[1]))
		}
	}
}
