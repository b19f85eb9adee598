package page

import (
	"fmt"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"pg_stat_backtrace/internal/pgtest"
)

// TestServers: the pages of two workers of a host list both servers, and show the other server with the rights that its worker
// gives. In the second server, a function waits for a lock.
func TestServers(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		quiet, busy := pgtest.Start(t, bin, pgtest.Options{}), pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off"}})
		busy.Exec(t, `CREATE TABLE hidden_table AS SELECT 1 n;
			CREATE FUNCTION hidden_wait() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
				RETURN (SELECT n FROM hidden_table);
			END $$`)
		holder, waiter := busy.Connect(t, busy.User, "postgres"), busy.Connect(t, busy.User, "postgres")
		if _, err := holder.Exec(t.Context(), "BEGIN; LOCK TABLE hidden_table"); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = waiter.PgConn().Exec(t.Context(), "SELECT hidden_wait() /* "+hostile+" */").ReadAll() }()
		var at [2]*httptest.Server
		var ports []int
		for i := range at {
			at[i] = httptest.NewUnstartedServer(nil)
			address := at[i].Listener.Addr().String()
			port, err := strconv.Atoi(address[strings.LastIndex(address, ":")+1:])
			if err != nil {
				t.Fatal(err)
			}
			ports = append(ports, port)
		}
		first, _ := startBeside(t, quiet.DataDir, at[0], ports)
		startBeside(t, busy.DataDir, at[1], ports)
		pid := int(waiter.PgConn().PID())
		t.Run("operator", func(t *testing.T) { listOfOperator(t, first, ports[1], pid, quiet.DataDir, busy.DataDir) })
		t.Run("view", func(t *testing.T) { listOfViewer(t, first, ports[1], pid) })
		t.Run("ended", func(t *testing.T) {
			x := openTab(t)
			x.enter(first, operatorToken)
			x.do(`location.hash = "view=servers"`)
			x.wait(`servers.length === 2 && servers.every((s) => s.data)`)
			busy.Stop("immediate")
			x.wait(fmt.Sprintf(`document.querySelector('tr[data-key="server%d"] .error')?.textContent.includes("the server does not run")`, ports[1]))
			// It comes last, without its old figures and findings. Before, it was the first one by its finding.
			x.wait(fmt.Sprintf(`[...document.querySelectorAll("#main tr[data-key]")].at(-1).dataset.key === "server%d"`, ports[1]))
			x.wait(fmt.Sprintf(`document.querySelector('tr[data-key="server%d"]').lastChild.textContent === "ended"`, ports[1]))
			at[1].CloseClientConnections()
			at[1].Listener.Close()
			x.wait(fmt.Sprintf(`document.querySelector('tr[data-key="server%d"] .error')?.textContent.includes("does not answer")`, ports[1]))
			x.wait(fmt.Sprintf(`document.querySelector('tr[data-key="server%d"]').textContent.includes(%q)`, ports[1], busy.DataDir)) // it stays
			x.wait(fmt.Sprintf(`!document.querySelector('tr[data-key="server%d"] .error')`, ports[0]))
		})
	})
}

func listOfOperator(t *testing.T, address string, other, pid int, quiet, busy string) {
	t.Helper()
	x := openTab(t)
	x.enter(address, operatorToken)
	x.wait(`last?.info && many && document.querySelector("nav").innerText.includes("Servers")`)
	x.press("s")
	x.wait(`isList() && document.getElementById("server").textContent === "2 servers"`)
	// The server with a finding is the first one.
	x.wait(fmt.Sprintf(`[...document.querySelectorAll("#main tr[data-key]")].map((r) => r.querySelector("b").textContent).join() === %q`, busy+","+quiet))
	x.wait(`document.querySelector("#main tr[data-key] .critical, #main tr[data-key] .warning")?.textContent.includes("blocks 1 session")`)
	x.do(`document.querySelector("#main select").value = "name", document.querySelector("#main select").dispatchEvent(new Event("change"))`)
	x.wait(`state().get("sort") === "name"`)
	look(t, x.ctx, x.run, x.wait, "servers")
	x.press("y")
	x.wait(`document.querySelector("#message code").textContent === "pg_stat_backtrace top --all"`)
	x.press("3")
	x.wait(`isList() && document.getElementById("message").innerText.includes("Open a server")`)
	x.do(fmt.Sprintf(`document.querySelector('tr[data-key="server%d"]').focus(), document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}))`, other))
	x.wait(fmt.Sprintf(`state().get("server") === "%d" && view() === "load" && last?.info?.data_directory === %q`, other, busy))
	x.press("3")
	// The panel is about the root, then about the process that waits in a function.
	x.wait(`document.getElementById("node")?.innerText.includes("Blocks 1 session")`)
	x.press("ArrowDown")
	x.press("j")
	x.wait(fmt.Sprintf(`document.getElementById("node").innerText.includes("PID %d") && document.getElementById("node").innerText.includes("hidden_wait")`, pid))
	x.wait(`[...document.querySelectorAll("#node pre")].some((p) => p.textContent.includes("PL/pgSQL function hidden_wait() line 2"))`)
	x.wait(`document.getElementById("node").innerText.includes("<script>window.bad=1</script><U+202E>") && window.bad === undefined`)
	look(t, x.ctx, x.run, x.wait, "blocking")
	x.do(fmt.Sprintf(`location.hash = "server=%d&view=session&pid=%d"`, other, pid))
	x.wait(`document.querySelector("main .line") !== null && names`)
	x.press("c")
	x.wait(`held !== null && held.stack.frames.length > 5`)
	x.press("w")
	x.wait(fmt.Sprintf(`measured?.text.startsWith("waits of %d")`, pid))
	x.do(`history.go(-3)`) // back to the list
	x.wait(`isList()`)
	x.do(`document.querySelectorAll("#main tr[data-key]").forEach((r) => { if (r.textContent.includes("` + quiet + `")) r.click(); })`)
	x.wait(fmt.Sprintf(`!state().get("server") && last?.info?.data_directory === %q && held === null && measured === null`, quiet))
}

// listOfViewer checks that a view token shows no directories and texts of any server, and starts no action.
func listOfViewer(t *testing.T, address string, other, pid int) {
	t.Helper()
	x := openTab(t)
	x.enter(address, viewToken)
	x.wait(`last?.info && many`)
	x.press("s")
	x.wait(fmt.Sprintf(`servers.length === 2 && servers.every((s) => s.data) && document.getElementById("main").innerText.includes("server of port %d")`, other))
	x.wait(`!JSON.stringify(servers).match(/hidden|data_directory":"[^"]/) && document.getElementById("main").innerText.includes("blocks other sessions (1 session in all)")`)
	x.do(fmt.Sprintf(`location.hash = "server=%d&view=blocking"`, other))
	x.wait(`document.getElementById("node")?.innerText.includes("need an operator token") && !document.body.innerText.includes("hidden")`)
	x.do(fmt.Sprintf(`location.hash = "server=%d&view=session&pid=%d"`, other, pid))
	x.wait(`last?.session && view() === "session"`)
	for _, key := range []string{"c", "p", "w", "i"} {
		x.press(key)
		x.wait(`document.getElementById("message").innerText.includes("an operator token")`)
	}
	// An address with a port that is no worker's shows the reason.
	x.do(`location.hash = "server=22&view=load"`)
	x.wait(`document.getElementById("failure").innerText.includes("no worker of this host")`)
	x.run(chromedp.Navigate("about:blank"))
}
