package ledger

import (
	"fmt"
	"strconv"
	"time"
)

// Tick is one point of a schedule: the time of a node's wall clock, rounded down. If cron starts a
// job on several nodes at the same time by each node's own clock, the nodes agree on the tick's
// name, however far their clocks differ.
type Tick struct {
	At  time.Time
	Per time.Duration
	now func() time.Time // the node's clock
}

const day = 24 * time.Hour

// ParsePeriod reads the time between ticks: a duration, or minute, hour, day. Ticks
// begin anew with each day, so a day has to be a whole number of them.
func ParsePeriod(text string) (time.Duration, error) {
	switch text {
	case "minute":
		return time.Minute, nil
	case "hour":
		return time.Hour, nil
	case "day", "1d":
		return day, nil
	}
	per, err := time.ParseDuration(text)
	if _, badNumber := strconv.Atoi(text); badNumber == nil {
		per, err = time.ParseDuration(text + "s") // which refuses what overflows
	}
	if err != nil || per < time.Second || per > day || day%per != 0 || per%time.Second != 0 {
		return 0, fmt.Errorf("%q: minute, hour, day, or a length that divides a day, such as 5m, 15m or 6h (for a job every 7 minutes use 1m)", text)
	}
	return per, nil
}

// TickOf is the tick of a process that started just now. With a day between ticks it is the local
// date, written as midnight in UTC. Shorter ticks are counted in UTC, where no hour comes twice.
func TickOf(per time.Duration, clock func() time.Time) *Tick {
	now := clock()
	at := now.UTC().Truncate(per)
	if per == day {
		year, month, date := now.Date()
		at = time.Date(year, month, date, 0, 0, 0, 0, time.UTC)
	}
	return &Tick{At: at, Per: per, now: clock}
}

func (t Tick) String() string {
	switch {
	case t.Per == day:
		return t.At.Format(time.DateOnly)
	case t.Per%time.Minute == 0:
		return t.At.Local().Format("2006-01-02 15:04")
	}
	return t.At.Local().Format(time.DateTime)
}
