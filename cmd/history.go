package cmd

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

type historyFlags struct {
	lookFlags
	last         int
	since, every duration
}

func newHistoryCmd(u *ui) *cobra.Command {
	f := historyFlags{lookFlags: lookFlags{options: newOptions(u)}}
	f.output = choose("table", "json", "csv", "html")
	cmd := &cobra.Command{
		Use:        "history [KEY|PATTERN...] [flags]",
		SuggestFor: []string{"log", "logs", "runs"},
		Short:      "Show the remembered runs of a key, or the last run of each key",
		Long: `Show the runs of a key that the ledger remembers, the newest first: when, where,
how long and with what result. A run is lost if its pglead could not say how it
ended.

Without a key, show the last run of each key; with patterns (see pglead ls), of
each key that matches one.

-o html writes a page about one key, with a picture; it needs no network. The
picture has a line for each host, the runs with their results, and marks where a
run was due and none started.`,
		Example: `  pglead history
  pglead history 'import/*' --since 1d
  pglead history nightly
  pglead history nightly -o html >nightly.html
  pglead history nightly -o json | jq '.[] | select(.outcome != "ok")'`,
		RunE: func(cmd *cobra.Command, keys []string) error {
			only, one := "", false
			if len(keys) == 1 {
				only, one = ledger.ParsePattern(keys[0]).Key()
			}
			switch {
			case f.last < 0 || cmd.Flags().Changed("last") && f.last == 0:
				return usagef("", "--last %d: from 1", f.last)
			case cmd.Flags().Changed("since") && f.since.value <= 0:
				return usagef("", "--since must be longer than 0")
			case cmd.Flags().Changed("every") && f.output.value != "html":
				return usagef("", "only pglead history KEY -o html takes %s", sourceOf(cmd.Flags().Lookup("every")))
			case one:
				return f.history(cmd, only)
			}
			return f.list(cmd, keys)
		},
	}
	cmd.Flags().IntVarP(&f.last, "last", "n", 0,
		fmt.Sprintf("the `N` newest (default %d runs of a key in a table, %d in html, else all)", tableRuns, mostOnPage))
	cmd.Flags().Var(&f.since, "since", "only runs that started within this time, such as 36h or 7d")
	cmd.Flags().Var(&f.every, "every", "html: how often a run is due (default: guessed from the runs)")
	f.register(cmd, "output")
	f.lockFlags(cmd)
	return cmd
}

// history shows the runs of one key.
func (f *historyFlags) history(cmd *cobra.Command, key string) error {
	write := map[string]func(io.Writer, pastRuns) error{
		"table": writeHistory, "json": writeHistoryJSON, "csv": writeHistoryCSV, "html": writeHistoryPage,
	}[f.output.value]
	most := mostKept
	switch {
	case f.last > 0:
		most = f.last
	case f.output.value == "html":
		most = mostOnPage
	case f.output.value == "table" && f.since.value == 0:
		most = tableRuns
	}
	ids, err := f.numbersOf(key)
	if err != nil {
		return err
	}
	return f.withLedger(cmd, f.openReader, func(ctx context.Context, on session.Connection) error {
		h, err := ledger.ReadHistory(ctx, on, ledger.Past{Key: key, IDs: ids, Since: f.since.value, Most: most})
		if err != nil {
			return err
		}
		return write(cmd.OutOrStdout(), pastRuns{history: h, key: key, target: f.target(), since: f.since, every: f.every.value, width: foregroundWidth(os.Stdout)})
	})
}

// tableRuns is how many runs of a key a table shows.
const tableRuns = 20

// pastRuns are the runs of a key, and how to show them.
type pastRuns struct {
	history ledger.History
	key     string
	target  string
	since   duration // 0: from the beginning
	every   time.Duration
	width   int // of the terminal, or 0
}

// result says how a run ended, with a remark.
func (p pastRuns) result(i int) (result, remark string) {
	r := p.history.Runs[i]
	result = string(r.Outcome)
	switch {
	case r.Status == nil, *r.Status == 0:
	case r.Outcome == ledger.Failed: // no number stands for a signal here: ssh exits with 255
		result += " " + strconv.Itoa(*r.Status)
	case *r.Status > exitSignalBase && r.Outcome != ledger.OK && r.Outcome != ledger.Lost:
		remark = "by signal " + strconv.Itoa(*r.Status-exitSignalBase)
	}
	if r.Missing() {
		remark = "can't be executed"
		if *r.Status == exitNotFound {
			remark = "command not found"
		}
	}
	if r.Outcome != ledger.Lost {
		return result, remark
	}
	switch next := p.history.Next(i); {
	case next != nil && next.Waited > 0:
		remark = "next start waited " + strings.Replace(took(next.Waited), ".0s", "s", 1)
	case r.Ended.IsZero() && !slices.ContainsFunc(p.history.Runs[:i], func(r ledger.Entry) bool { return !r.Missing() }):
		remark = "no start since"
	}
	return result, remark
}

// lasted says how long a run took, or has taken until now. A lost run may have ended long before
// that was noted, for instance by the next start.
func (p pastRuns) lasted(r ledger.Entry) string {
	switch {
	case r.Outcome == ledger.Running:
		return roughly(p.history.Now.Sub(r.Started)) + "…"
	case r.Ended.IsZero():
		return ""
	case r.Outcome == ledger.Lost:
		return "≤" + took(r.Took())
	}
	return took(r.Took())
}

// running says how long a run has lasted so far, and how long runs usually take.
func (p pastRuns) running(r ledger.Entry) string {
	text := "running " + roughly(p.history.Now.Sub(r.Started))
	if usually := p.history.MedianDuration(); usually > 0 {
		text += ", usually " + roughly(usually)
	}
	return fmt.Sprintf("%s (token %d)", text, r.Token)
}

// sinceText says how far back the runs go.
func (p pastRuns) sinceText() string {
	if p.since.value == 0 {
		return ""
	}
	return " of the last " + p.since.String()
}

// writeHistory writes for people.
func writeHistory(w io.Writer, p pastRuns) error {
	if len(p.history.Runs) == 0 {
		_, err := fmt.Fprintf(w, "no runs of %s are remembered in %s%s\n", printable(p.key), visible.Text(p.target), p.sinceText())
		return err
	}
	rows := [][]string{{"STARTED", "HOST", "TOOK  ", "RESULT", ""}} // TOOK is as wide as its longest value
	for i, r := range p.history.Runs {
		row := []string{whenExactly(r.Started, p.history.Now), visible.Text(r.Host)}
		if r.Outcome == ledger.Running {
			rows = append(rows, append(row, p.running(r)))
			continue
		}
		result, remark := p.result(i)
		rows = append(rows, append(row, p.lasted(r), visible.Text(result), remark))
	}
	var b strings.Builder
	for _, line := range columns(rows, p.width, shrinking{1, shorten}) {
		if p.width > 0 {
			line = shorten(line, p.width)
		}
		b.WriteString(line + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// runView is the -o json form of a run.
type runView struct {
	Key       string     `json:"key"`
	ID        int64      `json:"id"`
	IDText    string     `json:"id_text"`
	Started   time.Time  `json:"started"`
	Ended     *time.Time `json:"ended"` // null while it runs, or if nobody knows
	Seconds   *float64   `json:"seconds"`
	Outcome   string     `json:"outcome"`
	Status    *int       `json:"status"`
	Host      string     `json:"host"`
	PID       int        `json:"pid"`
	User      string     `json:"user"`
	Command   string     `json:"command"`
	Role      string     `json:"role"`
	Token     int64      `json:"token"`
	TokenText string     `json:"token_text"`
	SystemID  string     `json:"system_id"`
	Waited    float64    `json:"lock_delay_seconds"` // before the start
}

func newRunView(r ledger.Entry) runView {
	v := runView{
		Key: r.Key, ID: r.ID.Number, IDText: strconv.FormatInt(r.ID.Number, 10), Started: r.Started, Outcome: string(r.Outcome), Status: r.Status,
		Host: r.Host, PID: r.PID, User: r.User, Command: r.Command, Role: r.Role, Token: r.Token, TokenText: strconv.FormatInt(r.Token, 10),
		SystemID: r.System, Waited: r.Waited.Seconds(),
	}
	if !r.Ended.IsZero() {
		v.Ended, v.Seconds = &r.Ended, new(r.Took().Seconds())
	}
	return v
}

// runViews is not nil, so that it is [] in JSON.
func runViews(runs []ledger.Entry) []runView {
	views := []runView{}
	for _, r := range runs {
		views = append(views, newRunView(r))
	}
	return views
}

func writeHistoryJSON(w io.Writer, p pastRuns) error { return writeJSON(w, runViews(p.history.Runs)) }

func writeHistoryCSV(w io.Writer, p pastRuns) error {
	t := csv.NewWriter(w)
	_ = t.Write([]string{
		"started", "ended", "seconds", "outcome", "status", "host", "pid", "user", "command", "token",
		"lock_delay_seconds", "key", "id", "role", "system_id",
	})
	for _, r := range p.history.Runs {
		v := newRunView(r)
		row := []string{
			v.Started.Format(time.RFC3339Nano), "", "", v.Outcome, "", v.Host, strconv.Itoa(v.PID), v.User, v.Command, v.TokenText,
			strconv.FormatFloat(v.Waited, 'f', -1, 64), v.Key, "", v.Role, v.SystemID,
		}
		if v.Ended != nil {
			row[1], row[2] = v.Ended.Format(time.RFC3339Nano), strconv.FormatFloat(*v.Seconds, 'f', -1, 64)
		}
		if v.Status != nil {
			row[4] = strconv.Itoa(*v.Status)
		}
		for i, cell := range row {
			row[i] = inSheet(visible.Text(cell))
		}
		row[12] = v.IDText // a number, though it may begin with a minus
		_ = t.Write(row)
	}
	t.Flush()
	return t.Error()
}

// inSheet keeps a spreadsheet from reading others' text as a formula.
// https://owasp.org/www-community/attacks/CSV_Injection
func inSheet(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}
