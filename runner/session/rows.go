package session

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

// Connection answers questions: a *Session, a *Client, or what wraps one of these.
type Connection interface {
	Query(ctx context.Context, queries ...string) (Rows, error)
}

// Rows are what a query returned. NULL reads as empty.
type Rows [][]string

// Only returns the answer's single row. It fails unless there is exactly one row, with this many
// columns. With columns 0 any number of columns but zero will do.
func (r Rows) Only(columns int) ([]string, error) {
	if len(r) != 1 || len(r[0]) == 0 || columns > 0 && len(r[0]) != columns {
		return nil, NotPostgreSQL()
	}
	return r[0], nil
}

// Is says whether the answer is this one value.
func (r Rows) Is(value string) bool {
	row, err := r.Only(1)
	return err == nil && row[0] == value
}

// Ints returns the answer's single row, which has this many columns, all whole numbers.
func (r Rows) Ints(columns int) ([]int, error) {
	row, err := r.Only(columns)
	if err != nil {
		return nil, err
	}
	list := make([]int, len(row))
	for i, value := range row {
		if list[i], err = strconv.Atoi(value); err != nil {
			return nil, fmt.Errorf("read %q, which is no number: %w", value, NotPostgreSQL())
		}
	}
	return list, nil
}

// copyRow copies values, since the reader will overwrite them.
func copyRow(values [][]byte) []string {
	row := make([]string, len(values))
	for i, v := range values {
		row[i] = string(v)
	}
	return row
}

// rowsOf are the rows of pgconn's results, one result after the other.
func rowsOf(results []*pgconn.Result) (rows Rows) {
	for _, r := range results {
		for _, values := range r.Rows {
			rows = append(rows, copyRow(values))
		}
	}
	return rows
}
