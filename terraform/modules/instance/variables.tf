variable "project" {
  type        = string
  description = "Id of the project."
}

variable "region" {
  type        = string
  description = "Region of the workload."
}

variable "name" {
  type        = string
  description = "Name of the workload."
}

variable "image" {
  type        = string
  description = "Image that the first apply starts."
}

variable "account" {
  type        = string
  description = "Service account that the workload is, and nothing else is."
}

variable "env" {
  type        = map(string)
  description = "Environment of the agent."
}

variable "invokers" {
  type        = map(string)
  description = "IAM members that may call it, by a name for the plan."
}
