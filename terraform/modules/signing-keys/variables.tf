variable "project" {
  type        = string
  description = "Id of the project."
}

variable "name" {
  type        = string
  description = "Id of the secret."
}

variable "protect" {
  type        = bool
  description = "Refuses to destroy the secret."
}

variable "readers" {
  type        = map(string)
  description = "IAM members that read the key, by a name for the plan."
}
