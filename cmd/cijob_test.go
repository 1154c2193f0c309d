package cmd

import "testing"

func TestJobAddress(t *testing.T) {
	for name, tt := range map[string]struct {
		env  map[string]string
		want string
	}{
		"none": {nil, ""},
		"GitHub": {map[string]string{
			"GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "org/app", "GITHUB_RUN_ID": "1658821493",
		}, "https://github.example/org/app/actions/runs/1658821493"},
		"GitLab": {map[string]string{"GITLAB_CI": "true", "CI_JOB_URL": "https://gitlab.example/org/app/-/jobs/5"}, "https://gitlab.example/org/app/-/jobs/5"},
		"Buildkite": {map[string]string{
			"BUILDKITE": "true", "BUILDKITE_BUILD_URL": "https://buildkite.example/org/app/builds/7", "BUILDKITE_JOB_ID": "e44f9784",
		}, "https://buildkite.example/org/app/builds/7#e44f9784"},
		"CircleCI":   {map[string]string{"CIRCLECI": "true", "CIRCLE_BUILD_URL": "https://circleci.example/gh/org/app/8"}, "https://circleci.example/gh/org/app/8"},
		"Jenkins":    {map[string]string{"JENKINS_URL": "https://j.example/", "BUILD_URL": "https://j.example/job/app/15/"}, "https://j.example/job/app/15/"},
		"a password": {map[string]string{"GITLAB_CI": "true", "CI_JOB_URL": "https://u:secret@gitlab.example/5"}, ""},
		"no address": {map[string]string{"GITHUB_ACTIONS": "true"}, ""},
	} {
		if got := jobAddress(func(name string) string { return tt.env[name] }); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
